"""Who made a bundle: ed25519 signatures over its manifest, by the library ``cryptography``.

The manifest holds the sha256 of every file that is read and everything else that an answer depends on,
so its own sha256 seals the bundle. That is what is signed. Signatures lie beside it in ``bundle.sig``.
"""
