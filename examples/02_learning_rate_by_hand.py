"""A learning rate that is worked out by hand in every iteration, without a scheduler: warm-up, then decay."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import MainCallback, Trainer

INITIAL, GAMMA, WARMUP_EPOCHS, EPOCH_SIZE = 0.1, 0.8, 2, 16


def learning_rate(step):
    """The rate of the step with this number, from 0."""
    if step < WARMUP_EPOCHS * EPOCH_SIZE:
        return 1e-6 + (INITIAL - 1e-6) * step / (WARMUP_EPOCHS * EPOCH_SIZE)
    return INITIAL * GAMMA ** (step // EPOCH_SIZE - WARMUP_EPOCHS)


class ByHand(MainCallback):
    lr_every = "iter"  # after each step; without this line once an epoch

    def on_lr_adjust(self, run):
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(run.clock.steps)
        run.log("lr", group["lr"], over="last")


def main(epochs=6):
    torch.manual_seed(0)
    inputs = torch.randn(32 * EPOCH_SIZE, 10)
    loader = DataLoader(TensorDataset(inputs, inputs.sin().sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate(0))
    trainer = Trainer(model, optimizer, nn.MSELoss(), callbacks=[ByHand()], device="cpu")
    history = trainer.fit(loader, epochs=epochs)
    for epoch, (loss, rate) in enumerate(zip(history["train/loss"], history["lr"], strict=True)):
        print(f"epoch {epoch}: loss {loss:.3f}, learning rate at its end {rate:.4f}")
    return trainer


if __name__ == "__main__":
    main()
