"""The operators that TensorRT 10.14 parses, with the types that their first input may have.

From onnx-tensorrt's docs/operators.md of TensorRT 10.15, without what its changelog says 10.15 added
(RMSNormalization, RotaryEmbedding, TensorScatter); integer CumSum from TensorRT's own page on
Cumulative, which operators.md leaves out.
"""

from __future__ import annotations

from onnx import TensorProto

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
NUMBERS = FLOATS | {TensorProto.INT32, TensorProto.INT64}
ALL = NUMBERS | {TensorProto.BOOL}
QUANTISED = frozenset({TensorProto.INT8, TensorProto.INT4, TensorProto.FLOAT8E4M3FN})

_OF_FLOATS = """
Acos Acosh Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Ceil Celu Clip Conv
ConvTranspose Cos Cosh DeformConv Dropout Einsum Elu Erf Exp Floor Gemm GlobalAveragePool
GlobalLpPool GlobalMaxPool GridSample GroupNormalization GRU HardSigmoid HardSwish Hardmax
InstanceNormalization IsInf LayerNormalization LeakyRelu Log LogSoftmax LRN LSTM LpNormalization
LpPool MatMul MaxPool MeanVarianceNormalization Mish NonMaxSuppression NonZero PRelu QuantizeLinear
RandomNormalLike RandomUniformLike Reciprocal Resize RNN RoiAlign Round Scan Selu Sigmoid Sin Sinh
Softmax Softplus Softsign Sqrt STFT Tan Tanh ThresholdedRelu Upsample
"""
_OF_NUMBERS = """
Abs Add ArgMax ArgMin BlackmanWindow CumSum DepthToSpace Div Equal Gelu Greater GreaterOrEqual
HammingWindow HannWindow IsNaN Less LessOrEqual Max Mean Min Mod Mul Neg Pad Pow Range ReduceL1
ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare Relu Scatter ScatterElements ScatterND Shrink Sign SpaceToDepth Sub Sum TopK
"""
_OF_ALL = """
Cast CastLike Concat Constant ConstantOfShape Expand EyeLike Flatten Gather GatherElements GatherND
Identity If Loop OneHot RandomNormal RandomUniform Reshape ReverseSequence Shape Size Slice Split
Squeeze Tile Transpose Trilu Unsqueeze Where
"""

OPERATORS: dict[str, frozenset[int]] = {
    **dict.fromkeys(_OF_FLOATS.split(), FLOATS),
    **dict.fromkeys(_OF_NUMBERS.split(), NUMBERS),
    **dict.fromkeys(_OF_ALL.split(), ALL),
    **dict.fromkeys(("And", "Not", "Or", "Xor"), frozenset({TensorProto.BOOL})),
    "DequantizeLinear": QUANTISED,
}

# Operator → the input that must be known when an engine is built.
CONSTANT = {"CumSum": 1, "Squeeze": 1, "Unsqueeze": 1, "OneHot": 1} | dict.fromkeys(
    (name for name in OPERATORS if name.startswith("Reduce")), 1
)
