"""``xlt sign``: say by a signature that a bundle is yours."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve import manifest as rules
from xlt_serve.cli.parser import command
from xlt_serve.errors import BundleAltered, UsageError
from xlt_serve.signing import key_files, signatures

EXAMPLES = """examples:
  xlt sign --new-key release.pem          # writes release.pem, to keep secret, and release.pub
  xlt sign runs/topics-bundle --key release.pem
  xlt serve --bundle runs/topics-bundle --require-signature release.pub

A signature covers bundle.json, which has the sha256 of every file. Several keys may sign a bundle.
Keys are ed25519 in PEM, as openssl makes them."""


def add(commands: Any) -> None:
    sub = command(commands, "sign", run, "sign a bundle, or make a key for it", EXAMPLES)
    sub.add_argument("bundle", nargs="?", default=None, metavar="BUNDLE")
    sub.add_argument("--key", type=Path, default=None, metavar="PRIVATE.pem")
    sub.add_argument(
        "--new-key", type=Path, default=None, metavar="OUT", help="make a pair of keys"
    )


def run(options: argparse.Namespace) -> None:
    if options.new_key is not None:
        if options.bundle is not None or options.key is not None:
            raise UsageError("--new-key", "makes keys and signs nothing", "sign in a second call")
        public_file, public = key_files.write_new(options.new_key)
        print(f"private key: {options.new_key} (keep it secret)")
        print(f"public key:  {public_file} ({public.id})")
        return
    if options.bundle is None or options.key is None:
        raise UsageError("xlt sign", "needs a bundle and a key", "give BUNDLE --key PRIVATE.pem")
    key = key_files.read_private(options.key)
    bundle = bundles.load(options.bundle, key_files.ANYBODY)  # nobody signs a damaged one
    path, file = bundle.path, bundle.file(bundles.MANIFEST)
    content = rules.read(file)
    if bundles.parsed(content, file) != bundle.manifest:
        raise BundleAltered(file, "changes while it is signed", "sign it when it is whole")
    signature = signatures.sign(content, key)
    signatures.add(path, signature)
    print(f"signed: {path} by {signature.key}")
