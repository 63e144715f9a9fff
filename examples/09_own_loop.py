"""A training loop of your own in which every callback still plays."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer


class Accuracy(Callback):
    def before_val_epoch(self, run):
        self.correct = self.seen = 0

    def after_val_iter(self, run):
        self.correct += (run.output.argmax(dim=1) == run.targets).sum()
        self.seen += len(run.targets)

    def after_val_epoch(self, run):
        run.log("val/accuracy", self.correct / self.seen)


def main(epochs=5):
    torch.manual_seed(0)
    inputs = torch.randn(768, 10)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
    train_loader = DataLoader(TensorDataset(inputs[:512], targets[:512]), batch_size=32, shuffle=True)
    val_loader = DataLoader(TensorDataset(inputs[512:], targets[512:]), batch_size=128)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=[Accuracy()], device="cpu")

    with trainer.run(epochs=epochs) as run:
        for epoch in run.epochs():
            for _ in run.train(train_loader):
                run.forward()
                run.backward()
                run.step()  # or all three in one: run.train_step()
            for _ in run.validate(val_loader):
                run.eval_step()
            print(f"epoch {epoch}: loss {run.metrics['train/loss']:.3f}, accuracy {run.metrics['val/accuracy']:.1%}")
    return trainer


if __name__ == "__main__":
    main()
