"""Where an optional package is missing, the message names the extra that installs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadenza.callbacks import ExportCheck, HistoryPlot, Progress
from cadenza.dialects.aitoolbox.basic import SimpleEmailService
from cadenza.dialects.orca import TqdmCallback
from cadenza.dialects.supergradients.loggers import LineWriter
from cadenza.history import History


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("IPython", "notebook", lambda: Progress("notebook")),
        ("boto3", "ses", lambda: SimpleEmailService("us-east-1", "me@example.org", "you@example.org")),
        ("matplotlib", "plots", HistoryPlot),
        ("onnxruntime", "onnx", ExportCheck),
        ("pandas", "pandas", lambda: History().to_frame()),
        ("rich", "rich", lambda: Progress("rich")),
        ("tensorboard", "tensorboard", lambda: LineWriter(Path()).add_image),
        ("tqdm", "tqdm", TqdmCallback),
    ],
)
def test_a_message_names_the_extra(
    package: str, extra: str, use: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'cadenza\[{extra}\]'"):
        use()
