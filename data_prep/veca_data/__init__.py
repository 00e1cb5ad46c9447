"""The offline stage: images → shards → cached teacher targets. Training code never imports it.

In the order the data flows: `images` (one file) and `archives` (zips, tars) → `source` (what the user points
at, as a `listing`) → `inspect` (look and estimate) → `plan` (what goes where) → `pack` (workers of a `pool`
make shards by `writer`, `records` remember them) → `check` → `cache` (a teacher's run, by `targets`).
`sample` makes images of `scenes` of `solids`. `cli` has the verbs.
"""
