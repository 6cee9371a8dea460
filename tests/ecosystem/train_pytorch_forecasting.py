"""N-BEATS of pytorch-forecasting, built on lightning.pytorch, on the series that the library generates."""

from __future__ import annotations

import lightning.pytorch as pl
from closing import close
from pytorch_forecasting import NBeats, TimeSeriesDataSet
from pytorch_forecasting.data.examples import generate_ar_data

if __name__ == "__main__":
    pl.seed_everything(7)
    data = generate_ar_data(seasonality=10.0, timesteps=150, n_series=40, seed=42)
    common = {
        "time_idx": "time_idx",
        "target": "value",
        "group_ids": ["series"],
        "time_varying_unknown_reals": ["value"],
    }
    training = TimeSeriesDataSet(data[data.time_idx < 130], max_encoder_length=20, max_prediction_length=5, **common)
    validation = TimeSeriesDataSet.from_dataset(training, data, min_prediction_idx=130)
    model = NBeats.from_dataset(training, learning_rate=3e-3, widths=[32, 64], backcast_loss_ratio=0.1)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", gradient_clip_val=0.1, enable_model_summary=False, enable_progress_bar=False
    )
    trainer.fit(
        model,
        training.to_dataloader(train=True, batch_size=64, num_workers=2),
        validation.to_dataloader(train=False, batch_size=64, num_workers=0),
    )
    close(model)
