"""The class of trained models for each task."""

from __future__ import annotations

import functools
import inspect

from zoo.errors import UsageError
from zoo.inference.classification import TrainedClassification, TrainedClips
from zoo.inference.find_run import ModelLocation
from zoo.inference.labelling import TrainedSequenceClassification, TrainedTokenClassification
from zoo.inference.language import TrainedInfill, TrainedLanguageModel
from zoo.inference.masked import TrainedMaskedLM
from zoo.inference.trained_model import Trained
from zoo.inference.transcription import TrainedTranscription
from zoo.inference.translation import TrainedTranslation
from zoo.tasks.classification import ClipClassification, ImageTask
from zoo.tasks.infill import FIM
from zoo.tasks.labelling import TextClassification, TokenClassification
from zoo.tasks.lm import LanguageTask
from zoo.tasks.masked import MaskedLM
from zoo.tasks.preference import DPO
from zoo.tasks.task import Task
from zoo.tasks.transcription import Transcription


@functools.singledispatch
def use(task: Task, place: ModelLocation) -> Trained:
    """The trained model of a task. Plugins register classes for their own tasks with ``use.register``.

    An unregistered task whose model has ``begin(source, …)`` is a TrainedTranslation. Raises UsageError for others.
    """
    begin = getattr(task.net, "begin", None)
    if begin is not None and next(iter(inspect.signature(begin).parameters), "") == "source":
        return TrainedTranslation(task, place)
    raise UsageError(
        f"zoo cannot use a trained {type(task).__name__}: register it with zoo.inference.trained_tasks.use.register."
    )


use.register(LanguageTask, TrainedLanguageModel)
use.register(FIM, TrainedInfill)
use.register(DPO, TrainedLanguageModel)
use.register(ImageTask, TrainedClassification)
use.register(ClipClassification, TrainedClips)
use.register(Transcription, TrainedTranscription)
use.register(MaskedLM, TrainedMaskedLM)
use.register(TextClassification, TrainedSequenceClassification)
use.register(TokenClassification, TrainedTokenClassification)
