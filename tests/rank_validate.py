"""One step and a validation: `rank_validate.py SHARDS OUT DEVICES`. Rank 0 writes OUT/DEVICES.pt."""

import sys
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.training import make_data, make_model, make_trainer

    shards, out, devices = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    # A step that moves nothing: any number of ranks validates the same student.
    optimization = {"lr": 1e-12, "min_lr": 0.0}
    model = make_model(augment_rope=False, val_budgets=[4, 16], optimization=optimization)
    data = make_data(shards, batch_size=2)
    before = {name: buffer.clone() for name, buffer in model.student.named_buffers()}
    trainer = make_trainer(
        out,
        max_steps=1,
        devices=devices,
        limit_val_batches=1.0,
        num_sanity_val_steps=2,
        val_check_interval=1,
        check_val_every_n_epoch=None,
    )
    trainer.fit(model, datamodule=data)
    in_training = float(trainer.callback_metrics["val/loss"])
    assert all(torch.equal(before[name], buffer) for name, buffer in model.student.named_buffers())
    trainer.validate(model, datamodule=data, verbose=False)
    values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    trainer.predict(model, datamodule=data, return_predictions=False)
    if trainer.is_global_zero:
        torch.save({**values, "in training": in_training}, out / f"{devices}.pt")
