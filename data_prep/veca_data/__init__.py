"""The offline stage: images → shards → cached teacher targets. Training code never imports it.

In the order the data flows: `source` (what the user points at, by `archives` where it is packed) → `inspect`
(look and estimate) → `plan` (what goes where) → `pack` (workers of a `pool` make shards, `records` write and
remember them) → `check` → `cache` (a teacher's run). `sample` makes images of `scenes`. `cli` has the verbs.
"""
