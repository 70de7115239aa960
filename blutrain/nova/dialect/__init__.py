"""The nova dialect: a step as MLIR, between the recorder's trace and the kernels.

definition.py says which operations there are; context.py makes a context for them; nova.py holds their Python classes;
convert.py translates types, attributes and locations; graph.py reads and edits a step; verify.py checks it.
Imports blutrain.tensor and mlir; importing this package loads MLIR
(250 ms).
"""

from .context import create_context as create_context
from .definition import TERMINATOR as TERMINATOR
from .graph import Graph as Graph
from .verify import VerifyError as VerifyError
from .verify import verify as verify
