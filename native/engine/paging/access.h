// How an op goes through the bytes of a large operand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace memfit {

enum class Access {
  kStream,  // once, from the beginning to the end
  kRows,    // a few rows here and there
  kSweeps,  // again and again
};

// By its name: an op of torch's that is in neither list goes through its operands once, as element-wise ops do. One that
// does not is only slower. (Batch norms read a channel at a time, reductions and copies a column at a time.)
inline Access access_of(std::string_view name) {
  constexpr std::string_view kRows[] = {"embedding", "index", "gather", "scatter", "take", "put"};
  constexpr std::string_view kSweeps[] = {"mm", "bmm", "matmul", "linear", "conv", "lstm", "gru", "rnn", "attention", "dot", "cdist",
                                          "einsum", "linalg", "fft", "sort", "topk", "cholesky", "bilinear", "addmv", "addr", "ger",
                                          "norm", "sum", "mean", "var", "std", "softmax", "cum", "pool", "contiguous", "clone", "copy",
                                          "reshape", "flip", "roll"};
  const auto names = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (std::any_of(std::begin(kRows), std::end(kRows), names)) return Access::kRows;
  return std::any_of(std::begin(kSweeps), std::end(kSweeps), names) ? Access::kSweeps : Access::kStream;
}

// The bytes that come and go at once.
inline size_t chunk_for(Access access) { return access == Access::kRows ? size_t{4} << 10 : size_t{1} << 20; }

}  // namespace memfit
