"""What is known of a run: a bounded history, and the signals that rules may read."""

from __future__ import annotations

from .beside import AutogradFunctions as AutogradFunctions
from .beside import BeforeModel as BeforeModel
from .beside import BesideEpochs as BesideEpochs
from .beside import BesideModel as BesideModel
from .beside import RepeatedDerivatives as RepeatedDerivatives
from .beside import WeightPenalties as WeightPenalties
from .beside import WithinModel as WithinModel
from .drift import Drift as Drift
from .loader import SOME_WITHOUT as SOME_WITHOUT
from .steps import BODY as BODY
from .steps import Outliers as Outliers
from .window import Window as Window
