"""A model that is wrapped for the duration of a run and unwrapped afterwards, however the run ends."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer


class Parallel(Callback):
    """Calls the model through DataParallel, which splits each batch over the GPUs; without one it changes nothing."""

    def around_run(self, run):
        plain = run.model
        run.model = nn.DataParallel(plain)
        try:
            yield
        finally:
            run.model = plain


def main(epochs=5):
    torch.manual_seed(0)
    inputs = torch.randn(256, 10)
    loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=[Parallel()])

    @trainer.on("before_train_epoch")
    def tell(run):
        if run.epoch == 0:
            print(f"what is called is a {type(run.model).__name__}, the user's own model a {type(run.module).__name__}")

    history = trainer.fit(loader, epochs=epochs)
    print(f"loss {history['train/loss'][-1]:.3f}; the names of the weights are as before: {[*model.state_dict()]}")
    return trainer


if __name__ == "__main__":
    main()
