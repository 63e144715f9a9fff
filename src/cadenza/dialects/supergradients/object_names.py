"""The constants of the original's ``common.object_names``: each is the text under which its thing is registered.

The texts are those of 3.7.1, also of what is not carried: using such a one says why. A
constant is found by its text, in any case, with or without separators and the last word of its kind. ``Models`` follows
a rule instead: the lower-case name, so that any upper-case attribute of it is a text.

>>> Models.RESNET18, Metrics.TOP5, Losses.CROSS_ENTROPY
('resnet18', 'Top5', 'CrossEntropyLoss')
"""

from __future__ import annotations

from cadenza.dialects.supergradients.callbacks import __all__ as carried
from cadenza.dialects.supergradients.registry import plainly
from cadenza.dialects.supergradients.table import REFUSED

__all__ = ["Callbacks", "LRSchedulers", "LRWarmups", "Losses", "Metrics", "Models", "Optimizers"]


class _Names:
    def __init__(self, kind: str, texts: str) -> None:
        pairs = (one.rpartition("=") for one in texts.split())
        self._texts = {plainly(name or text.removesuffix(kind)): text for name, _, text in pairs}
        self._kind = kind

    def __getattr__(self, name: str) -> str:
        plain = plainly(name).removesuffix(plainly(self._kind))
        if plain in self._texts:
            return self._texts[plain]
        if self is Models and name.isupper():
            return name.lower().replace("pp_yoloe", "ppyoloe").replace("custom_yolo_x", "custom_yolox")
        known = ", ".join(self._texts.values())
        raise AttributeError(f"supergradients: there is no {self._kind} called {name!r}. There are: {known}", name=name)


Models = _Names("Model", "regnetY200 regnetY400 regnetY600 regnetY800 POSE_RESCORING=pose_rescoring_custom "
    "CustomizedEfficientnet")  # fmt: skip
Metrics = _Names("Metric", "Accuracy Top5 IoU BinaryIOU Dice BinaryDice PixelAccuracy DetectionMetrics "
    "PoseEstimationMetrics DetectionMetrics_050 DetectionMetrics_075 DetectionMetrics_050_095 DeltaMetric "
    "DetectionMetricsDistanceBased Delta1 Delta2 Delta3 DepthMAE DepthMAPE DepthMSE DepthRMSE DepthMSLE")  # fmt: skip
Losses = _Names("Loss", "CrossEntropyLoss MSE RSquaredLoss ShelfNetOHEMLoss SHELFNET_SE=ShelfNetSemanticEncodingLoss "
    "YOLOX=YoloXDetectionLoss YOLOX_FAST=YoloXFastDetectionLoss PPYoloELoss SSDLoss STDCLoss BCEDiceLoss DEKRLoss "
    "RescoringLoss YoloNASPoseLoss DiceCEEdgeLoss KD=KDLogitsLoss")  # fmt: skip
LRSchedulers = _Names("LRScheduler", "StepLRScheduler PolyLRScheduler CosineLRScheduler FunctionLRScheduler "
    "EXP=ExponentialLRScheduler")  # fmt: skip
LRWarmups = _Names("LRWarmup", "LINEAR_STEP=LinearEpochLRWarmup LINEAR_EPOCH_STEP=LinearEpochLRWarmup "
    "LINEAR_BATCH_STEP=LinearBatchLRWarmup")  # fmt: skip
Optimizers = _Names("Optimizer", "SGD Adam AdamW RMSprop RMSpropTF Lamb Lion")
Callbacks = _Names("Callback", " ".join(["EarlyStop", *(one for one in (*carried, *REFUSED) if "Callback" in one)]))
