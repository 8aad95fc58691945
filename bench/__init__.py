"""The benchmarks: one question a script, everything that is compared run side by side.

    python -m bench list                                    the questions
    python -m bench single                                  a table, one JSON line
    python -m bench single --json --plots plots             the JSON line alone, and a plot
    python -m bench all --write docs/benchmarks.md          every one, and the page
    python -m bench pg_decay --minutes 60                   an hour of load on a Postgres of its own

A module without an underscore is a benchmark: its docstring is the question, and `run(options)` answers it
with a Result. The modules with one are what they share: the documents' queues as they printed them
(`_documents`; in Postgres `_jobs_table`, `_retained`), the messages of their mix (`_workload`), trials of many
processes (`_children`, `_load`, `_contenders`), pairs and percentiles (`_measure`), and what is shown
(`_report`, `_plots`, `_page`). Those named pg_ start a Postgres (`_servers`), load it (`_claimers`, `_steady`,
`_pg_peers`) and look on (`_waits`, `_watch`).

A trial warms up first, and that is not counted. Contenders take turns (A B A B) in one run on one machine, a
ratio is made of two neighbours, and the median of the ratios is what is said. Durability is equal: NORMAL
beside NORMAL, FULL beside FULL.
"""
