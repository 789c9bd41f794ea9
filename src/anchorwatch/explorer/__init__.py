"""The explorer: attention of a run in the browser, step by step.

`server.serve` shows runs on this machine, `export.export` writes one page or a folder, and
`notebook.show_in_notebook` is `trace.show()`. The three give the same page the same packets
(`run_data`); docs/explorer-contract.md says what is in them. The page's source is in web/.
"""
