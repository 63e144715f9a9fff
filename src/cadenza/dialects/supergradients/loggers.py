"""The logger that callbacks find in the context: scalars and images for TensorBoard, files in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cadenza.dialects.table import nearest
from cadenza.foundation.suggest import suggestion
from cadenza.foundation.whole_files import write_whole

__all__ = ["BaseSGLogger"]


class LineWriter:
    """Writes scalars as lines of JSON where TensorBoard is not installed; anything else needs it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "scalars.jsonl"

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"tag": tag, "value": value, "step": step}) + "\n")

    def flush(self) -> None: ...
    def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise ImportError(
            f"supergradients: sg_logger.{name} writes for TensorBoard: pip install 'cadenza[tensorboard]'"
        )


def _new_writer(folder: Path) -> Any:
    if find_spec("tensorboard") is None:
        return LineWriter(folder)
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


_FREE = ("project_name", "monitor_system")
_OFF = (
    "tb_files_user_prompt", "launch_tensorboard", "tensorboard_port", "save_checkpoints_remote",
    "save_tensorboard_remote", "save_logs_remote",
)  # fmt: skip
"""What ``sg_logger_params`` may name: anything, and only false or empty. The system is not monitored."""


def check_params(given: Mapping[str, Any] | None) -> None:
    """Refuses parameters that would change nothing: files stay on this machine, and TensorBoard is not started.

    >>> check_params({"project_name": "mine", "save_logs_remote": False})
    """
    for name, value in (given or {}).items():
        if name not in _FREE + _OFF:
            hint = suggestion(nearest(name, _FREE + _OFF))
            raise ValueError(f"supergradients: sg_logger_params has no {name!r}{hint}")
        if value and name in _OFF:
            raise ValueError(
                f"supergradients: sg_logger_params.{name}={value!r} is not carried: files stay on this machine; "
                "start TensorBoard yourself"
            )


class BaseSGLogger:
    """Writes into ``local_dir``, on the main process only. TensorBoard's file is opened when something is added."""

    def __init__(self, local_dir: str, *, on: bool = True, **params: Any) -> None:
        self.folder, self.on, self.params = Path(local_dir), on, params
        self._writer: Any = None

    def local_dir(self) -> str:
        return str(self.folder)

    @property
    def writer(self) -> Any:
        if self._writer is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._writer = _new_writer(self.folder)
        return self._writer

    def add_config(self, tag: str, config: Any) -> None:
        if self.on:
            write_whole(self.folder / f"{tag}.json", json.dumps(config, indent=2, default=str).encode())

    def _write(self, method: str, *args: Any, **kwargs: Any) -> None:
        if self.on:
            getattr(self.writer, method)(*args, **kwargs)

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int = 0) -> None:
        self._write("add_scalar", tag, float(scalar_value), global_step)

    def add_scalars(self, tag_scalar_dict: Mapping[str, Any], global_step: int = 0) -> None:
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(tag, value, global_step)

    def add_image(self, tag: str, image: Any, data_format: str = "CHW", global_step: int = 0) -> None:
        self._write("add_image", tag, image, global_step, dataformats=data_format)

    def add_images(self, tag: str, images: Any, data_format: str = "NCHW", global_step: int = 0) -> None:
        self._write("add_images", tag, images, global_step, dataformats=data_format)

    def add_video(self, tag: str, video: Any, global_step: int = 0) -> None:
        self._write("add_video", tag, video, global_step)

    def add_histogram(self, tag: str, values: Any, bins: Any = "tensorflow", global_step: int = 0) -> None:
        self._write("add_histogram", tag, values, global_step, bins)

    def add_text(self, tag: str, text_string: str, global_step: int = 0) -> None:
        self._write("add_text", tag, text_string, global_step)

    def add_figure(self, tag: str, figure: Any, global_step: int = 0) -> None:
        self._write("add_figure", tag, figure, global_step, close=False)

    def add_model_graph(self, tag: str, model: Any, dummy_input: Any) -> None:
        self._write("add_graph", model, dummy_input)

    def add_checkpoint(self, tag: str, state_dict: Mapping[str, Any], global_step: int = 0) -> None:
        """Writes ``state_dict`` under ``tag`` in the folder; tensors and plain values only."""
        from cadenza.dialects.aitoolbox.folders import save_state

        if self.on:
            save_state(self.folder / (tag if tag.endswith(".pth") else f"{tag}.pth"), state_dict)

    def add_file(self, file_name: str) -> None:
        """The file is in the folder already; nothing is sent anywhere."""

    def upload(self) -> None:
        """Files stay on this machine."""

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
