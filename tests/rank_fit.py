"""A short distillation: `rank_fit.py SHARDS OUT DEVICES BATCH_SIZE [ACCELERATOR PRECISION]`.

Each rank writes OUT/DEVICES-RANK.pt.
"""

import os
import sys
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.training import Diary, InactiveCores, make_data, make_model, make_trainer

    shards, out = Path(sys.argv[1]), Path(sys.argv[2])
    devices, batch_size = int(sys.argv[3]), int(sys.argv[4])
    accelerator, precision = sys.argv[5:7] or ("cpu", "32-true")
    torch.set_num_threads(1)
    model, diary, watch = make_model(augment_rope=False), Diary(), InactiveCores()
    if int(os.environ.get("LOCAL_RANK", 0)):
        with torch.no_grad():  # ranks that start apart must be brought together
            for parameter in model.student.parameters():
                parameter.add_(1)
    start = {name: tensor.clone() for name, tensor in model.student.state_dict().items()}
    trainer = make_trainer(
        out,
        max_steps=20,
        devices=devices,
        accelerator=accelerator,
        precision=precision,
        callbacks=[diary, watch],
    )
    trainer.fit(model, datamodule=make_data(shards, batch_size=batch_size))
    result = {
        "student": dict(model.student.state_dict()),
        "start": start,
        "budgets": [page[1] for page in diary.pages],
        "keys": [page[3] for page in diary.pages],
        "inactive_checked": watch.checked,
    }
    torch.save(result, out / f"{devices}-{trainer.global_rank}.pt")
