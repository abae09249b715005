"""``xlt build``: a folder with everything that a bento, an image and a cluster need, and nothing else.

The files beside the modules are its templates (``recipes``) and the locks of what an image installs.
"""
