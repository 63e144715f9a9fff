"""Knowledge distillation: a small network learns from the answers of a large one, not from the labels alone.

The student sees few labelled images. The teacher, trained on all of them, tells it for each image how likely it holds
each of the other digits: more than a label says.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import kl_div, log_softmax
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer


class Distillation(Callback):
    """Mixes into the training loss how far the student's answers are from the teacher's, at a given temperature."""

    stages = frozenset({"train"})

    def __init__(self, teacher, share=0.9, temperature=3.0):
        self.teacher = teacher.eval().requires_grad_(False)
        self.share, self.temperature = share, temperature

    def before_run(self, run):
        self.teacher.to(run.device)

    def after_loss(self, run):
        with torch.no_grad():
            answers = self.teacher(run.inputs)
        run.loss = (1 - self.share) * run.loss + self.share * distance(run.output, answers, self.temperature)


def distance(student, teacher, temperature):
    student, teacher = (log_softmax(answers / temperature, dim=1) for answers in (student, teacher))
    return kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def digits():
    """Images of digits with labels, and the part that the student may see; then those for validation."""
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    parts = (slice(0, 1200), slice(0, 100), slice(1200, None))
    return tuple(TensorDataset(images[part], labels[part]) for part in parts)


def network(hidden):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def train(model, data, epochs, callbacks=()):
    loader = DataLoader(data, batch_size=50, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")
    trainer.fit(loader, epochs=epochs)
    return trainer


def accuracy(trainer, data):
    answers = trainer.predict(DataLoader(data, batch_size=200))
    return float((answers.argmax(1) == data.tensors[1]).float().mean())


def main(epochs=60):
    everything, little, val = digits()
    teacher = train(network(256), everything, epochs=10)
    alone = train(network(16), little, epochs)
    taught = train(network(16), little, epochs, [Distillation(teacher.model)])
    for name, trainer in (("teacher", teacher), ("student alone", alone), ("student with the teacher", taught)):
        print(f"{name}: {accuracy(trainer, val):.1%} of new digits read correctly")
    return taught


if __name__ == "__main__":
    main()
