"""A gradient penalty: the loss should not change much where the input changes a little.

The penalty is itself made of gradients, those of the loss with respect to the inputs, so the backward pass goes through
a backward pass. In return the model is harder to fool by inputs that were moved to fool it.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer


class GradientPenalty(Callback):
    """Adds to the loss of each training batch how steep it is in the inputs, times ``weight``."""

    stages = frozenset({"train"})

    def __init__(self, weight):
        self.weight = weight

    def before_forward(self, run):
        run.inputs = run.inputs.detach().requires_grad_()

    def after_loss(self, run):
        run.loss = run.loss + self.weight * steepness(run.loss, run.inputs)


def steepness(loss, inputs):
    """The mean squared length of the gradient of each sample's loss, as something to differentiate again."""
    (slopes,) = torch.autograd.grad(loss, inputs, create_graph=True)
    return (slopes * len(inputs)).square().sum(1).mean()  # the loss is a mean, hence the number of samples


def digits():
    """Images of digits as 64 numbers from 0 to 1, for training and for validation."""
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    return TensorDataset(images[:1200], labels[:1200]), TensorDataset(images[1200:], labels[1200:])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def accuracy_when_fooled(model, data, step=0.1):
    """The share of images that is read correctly after each pixel moved by ``step`` the way that raises the loss."""
    images, labels = data.tensors
    images = images.clone().requires_grad_()
    cross_entropy(model(images), labels).backward()
    model.zero_grad()
    fooling = images.detach() + step * images.grad.sign()
    return float((model(fooling).argmax(1) == labels).float().mean())


def train(callbacks, epochs):
    model, (train_data, val_data) = network(), digits()
    loader = DataLoader(train_data, batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
    trainer.fit(loader, DataLoader(val_data, batch_size=597), epochs=epochs)
    return trainer


def main(epochs=15):
    for name, callbacks in (("without a penalty", []), ("with the penalty", [GradientPenalty(0.1)])):
        trainer = train(callbacks, epochs)
        read = accuracy_when_fooled(trainer.model, digits()[1])
        print(f"{name}: reads {read:.0%} of the digits that were moved to fool it")
    return trainer


if __name__ == "__main__":
    main()
