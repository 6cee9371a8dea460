"""NHITS of neuralforecast, built on pytorch_lightning, on the airline passengers that the library brings along."""

from __future__ import annotations

from closing import close
from neuralforecast import NeuralForecast
from neuralforecast.models import NHITS
from neuralforecast.utils import AirPassengersPanel

if __name__ == "__main__":
    model = NHITS(
        h=12,
        input_size=24,
        max_steps=300,
        windows_batch_size=128,
        mlp_units=3 * [[64, 64]],
        val_check_steps=50,
        random_seed=7,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    forecast = NeuralForecast(models=[model], freq="ME")
    forecast.fit(AirPassengersPanel, val_size=12)
    assert len(forecast.predict()) == 24
    close(forecast.models[0])
