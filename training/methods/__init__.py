"""All training methods by the name that a config calls them."""

from training.method import Method
from training.methods.adapters import Adapters
from training.methods.adversarial import Adversarial
from training.methods.batch_norm import BatchNorm
from training.methods.bitfit import BitFit
from training.methods.code_switch import CodeSwitch
from training.methods.cosine import Cosine
from training.methods.ear import EAR
from training.methods.ewc import EWC
from training.methods.isobn import IsoBN
from training.methods.isotropy import Isotropy
from training.methods.l2_anchor import L2Anchor
from training.methods.noise import Noise
from training.methods.noisy_tune import NoisyTune
from training.methods.soft_prompt import SoftPrompt
from training.methods.synonyms import Synonyms
from training.methods.translate_train import TranslateTrain
from training.methods.vanilla import Vanilla
from training.methods.word_swap import WordSwap
from training.methods.xmixup import XMixup

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
