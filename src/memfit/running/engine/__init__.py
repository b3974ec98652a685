"""The engine as Python has it: built and loaded, its seam typed; its devices and its tiers."""

from memfit.running.engine.cache import cache_folder as cache_folder
from memfit.running.engine.loader import NO_CUDA_HEADERS as NO_CUDA_HEADERS
from memfit.running.engine.loader import build as build
from memfit.running.engine.loader import cached_library as cached_library
from memfit.running.engine.loader import compiler as compiler
from memfit.running.engine.loader import cuda_headers as cuda_headers
from memfit.running.engine.loader import has_cuda as has_cuda
from memfit.running.engine.loader import library_built_ahead as library_built_ahead
from memfit.running.engine.loader import library_in_use as library_in_use
from memfit.running.engine.loader import load as load
from memfit.running.engine.module import EngineModule as EngineModule
from memfit.running.engine.module import OpHash as OpHash
from memfit.running.engine.module import RemakeTableColumns as RemakeTableColumns
from memfit.running.engine.module import SwapTableColumns as SwapTableColumns
