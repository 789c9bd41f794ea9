"""The explorer: watch attention drift while the text is written, in the browser.

`server.serve` shows runs on this machine, `export.export` writes one page or a folder, and
`notebook.show_in_notebook` is `trace.show()`. The three give the same page the same packets
(`tiles`); docs/explorer-contract.md says what is in them. The page's source is in web/.
"""
