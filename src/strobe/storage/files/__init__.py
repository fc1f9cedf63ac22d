"""The files of a store, in a directory or an object store, behind one interface, `StorageBackend`.

In: names and bytes. Out: files that are created whole or not at all, and by exactly one of several creators. `layout`
has the names of the files, `header` identifies the store, `checksummed_json` is the format of every small file,
`urls` parses paths and URLs.

Public: `backend`, `checksummed_json`, `commit_steps`, `header`, `layout`, `urls`.
"""
