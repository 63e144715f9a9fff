"""Two optimizers in turn: even batches train the body of the network, odd ones its head."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import MainCallback, Trainer


class InTurn(MainCallback):
    """Owns what a step does. All gradients are cleared afterwards, those that were not used too."""

    def on_iter_step(self, run):
        run.step_optimizer(run.optimizers[run.batch_idx % len(run.optimizers)])


def main(epochs=10):
    torch.manual_seed(0)
    inputs = torch.randn(512, 10)
    loader = DataLoader(TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizers = [
        torch.optim.Adam(model[0].parameters(), lr=0.01),
        torch.optim.SGD(model[2].parameters(), lr=0.2, momentum=0.9),
    ]
    trainer = Trainer(model, optimizers, nn.CrossEntropyLoss(), callbacks=[InTurn()], device="cpu")
    history = trainer.fit(loader, epochs=epochs)
    print(f"{trainer.clock.steps} steps, half of each optimizer; loss {history['train/loss'][-1]:.3f}")
    return trainer


if __name__ == "__main__":
    main()
