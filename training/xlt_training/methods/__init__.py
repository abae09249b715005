"""All training methods by the name that a config calls them.

A new one is a file beside this one and a line below: its class says what it does to others (``traits``)
and what it leaves for serving (``graphs``, ``noise``, ``synonyms``, ``pairing``). Settings that differ from its
defaults, or by task, go into ``configs/methods``.
"""

from xlt_training.loop.method import Method
from xlt_training.methods.adapters import Adapters
from xlt_training.methods.adversarial import Adversarial
from xlt_training.methods.batch_norm import BatchNorm
from xlt_training.methods.bitfit import BitFit
from xlt_training.methods.code_switch import CodeSwitch
from xlt_training.methods.cosine import Cosine
from xlt_training.methods.ear import EAR
from xlt_training.methods.ewc import EWC
from xlt_training.methods.isobn import IsoBN
from xlt_training.methods.isotropy import Isotropy
from xlt_training.methods.l2_anchor import L2Anchor
from xlt_training.methods.noise import Noise
from xlt_training.methods.noisy_tune import NoisyTune
from xlt_training.methods.soft_prompt import SoftPrompt
from xlt_training.methods.synonyms import Synonyms
from xlt_training.methods.translate_train import TranslateTrain
from xlt_training.methods.vanilla import Vanilla
from xlt_training.methods.word_swap import WordSwap
from xlt_training.methods.xmixup import XMixup

METHODS: dict[str, type[Method]] = {
    "vanilla": Vanilla,
    "translate_train": TranslateTrain,
    "adversarial": Adversarial,
    "noise": Noise,
    "synonyms": Synonyms,
    "word_swap": WordSwap,
    "ear": EAR,
    "xmixup": XMixup,
    "isotropy": Isotropy,
    "code_switch": CodeSwitch,
    "batch_norm": BatchNorm,
    "isobn": IsoBN,
    "cosine": Cosine,
    "noisy_tune": NoisyTune,
    "l2_anchor": L2Anchor,
    "ewc": EWC,
    "bitfit": BitFit,
    "soft_prompt": SoftPrompt,
    "adapters": Adapters,
}
