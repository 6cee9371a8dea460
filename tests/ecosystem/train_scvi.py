"""The variational autoencoder of scvi-tools, built on lightning.pytorch, on the cells that the library generates."""

from __future__ import annotations

import scvi
from closing import close

if __name__ == "__main__":
    scvi.settings.seed = 7
    cells = scvi.data.synthetic_iid(batch_size=800, n_genes=200)
    scvi.model.SCVI.setup_anndata(cells, batch_key="batch")
    model = scvi.model.SCVI(cells, n_hidden=64)
    model.train(max_epochs=15, accelerator="cpu", enable_progress_bar=False, check_val_every_n_epoch=5)
    assert model.get_latent_representation().shape == (1600, 10)
    close(model.module)
