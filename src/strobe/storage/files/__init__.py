"""Where the files of a store lie: a directory or an object store, behind one interface, `StorageBackend`.

Files are created whole or not at all, by one of several creators. `layout` has their names, `header` says which store
it is, `checksummed_json` is the form of every small file, `urls` says what a path or URL stands for.
"""
