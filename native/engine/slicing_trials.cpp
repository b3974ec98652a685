// Slicing's trials: whether a call gives the same bits slice by slice.
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "engine.h"
#include "making.h"
#include "observer.h"
#include "operands.h"
#include "slices.h"
#include "slicing.h"
#include "splitting.h"
#include "stopwatch.h"
#include "strip.h"
#include "telling.h"

namespace memfit {

namespace {

std::vector<at::Tensor> tensors_of(const Slicing::Stack& stack) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : stack)
    if (value.isTensor()) tensors.push_back(value.toTensor());
  return tensors;
}

size_t bytes_of(const Slicing::Stack& stack) {
  size_t bytes = 0;
  for (const c10::IValue& value : stack)
    each_tensor(value, [&](const at::Tensor& tensor) { bytes += tensor.defined() ? tensor.nbytes() : 0; });
  return bytes;
}

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
}

}  // namespace

// The op's frame has what it returned, whatever goes wrong here: then it is not split.
void Slicing::run_and_try(SplitCall& call, const Kernel& kernel, Stack& stack) {
  const Stack inputs = stack;
  ThreadState& thread = this_thread();
  const size_t allocated_before = thread.allocated;
  kernel(stack);
  const size_t allocated = thread.allocated - allocated_before;
  const std::vector<at::Tensor> outputs = tensors_of(stack);
  size_t made = 0, workspace = 0;
  for (const at::Tensor& output : outputs) made += output.defined() ? output.nbytes() : 0;
  const bool is_worth = engine_.governing([&](Session& session) {
    workspace = thread.window.length(session.memory.arena->ranges.alignment());
    call.is_mapped = std::any_of(thread.touched.begin(), thread.touched.end(), [](const Block* block) { return block->mapped != nullptr; });
    return session.splitting.is_worth_trying(bytes_of(inputs) + std::max(made, workspace)) && (session.stats.budget_bytes == 0 || session.splitting.is_pressed() || call.is_mapped);
  });
  if (!is_worth) return;
  Stopwatch stopwatch(thread.waited_ns);
  std::optional<Answer> answer = tried_against(outputs, call, kernel, inputs);
  thread.allocated = allocated_before + allocated;
  if (!answer) return;
  answer->workspace_bytes = workspace;
  answer->allocated_bytes = allocated;
  engine_.governing([&](Session& session) {
    if (!answer->equal.empty()) session.splitting.note_need(thread, call.ways, inputs_in(inputs), *answer);
    session.lasting.gate.note(call.key, std::move(*answer));
  });
}

// `outputs`: of the call when it ran whole. They, and the inputs, are in memory.
std::optional<Answer> Slicing::tried_against(const std::vector<at::Tensor>& outputs, const SplitCall& call, const Kernel& kernel, const Stack& inputs) {
  for (const Way& way : call.ways)
    if (!tell(way, inputs_in(inputs))) return std::nullopt;
  Answer answer;
  answer.op = call.op->name;
  for (const at::Tensor& output : outputs)
    if (output.defined()) answer.outputs.push_back({output.sizes().vec(), output.strides().vec(), output.scalar_type()});
  const bool are_dense = std::all_of(outputs.begin(), outputs.end(), [](const at::Tensor& each) { return !each.defined() || fills_its_storage(each); });
  SplitCall tried = call;
  try {
    const Aside aside;
    for (size_t number = 0; number < call.ways.size(); ++number) {
      tried.way = call.ways[number];
      if (!tried.way.gathers && (!are_dense || tried.way.outputs.size() != answer.outputs.size())) continue;
      const std::vector<int64_t> all = lengths(tried, inputs_in(inputs), answer.outputs);
      for (int64_t steps : all) {
        const bool is_same = tried.way.gathers ? is_same_gathered(tried, kernel, inputs, outputs) : is_same_in(tried, kernel, inputs, outputs, steps);
        if (is_same) answer.equal.push_back({static_cast<int32_t>(number), steps});
      }
      if (!all.empty() && answer.equal.size() == all.size()) break;  // as good as any
    }
  } catch (const std::exception&) {
    if (call.is_mapped) return std::nullopt;  // there may be room another time
    answer.equal.clear();
  }
  return answer;
}

// Where it runs mapped: the shortest two for which there is room.
std::vector<int64_t> Slicing::lengths(const SplitCall& call, Inputs inputs, const std::vector<OutputLayout>& outputs) {
  std::vector<int64_t> all = Splitting::lengths(call.way, inputs, outputs);
  if (!call.is_mapped || all.empty()) return all;
  const size_t room = engine_.governing([](Session& session) {
    return std::max(session.memory.arena->ranges.largest_free(), session.residency.widest_window(/*running=*/true));
  });
  std::sort(all.begin(), all.end());
  all.resize(std::min<size_t>(all.size(), 2));
  all.erase(std::remove_if(all.begin(), all.end(), [&](int64_t steps) { return 2 * Splitting::slice_bytes(call.way, inputs, outputs, steps) > room; }),
            all.end());
  if (all.empty()) throw std::bad_alloc();
  return all;
}

bool Slicing::is_same_in(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs,
                         int64_t steps) {
  for (int64_t begin = 0; begin < call.way.length; begin += steps) {
    const int64_t end = std::min(begin + steps, call.way.length);
    Stack arguments = slices(call, inputs, begin, end);
    kernel(arguments);
    for (size_t i = 0; i < call.way.outputs.size(); ++i) {
      const at::Tensor& whole = outputs[i];
      const at::Tensor slice = arguments[i].toTensor();
      c10::SmallVector<int64_t, 5> sizes(whole.sizes().begin(), whole.sizes().end());
      const int64_t dim = call.way.outputs[i];
      sizes[dim] = end - begin;
      if (slice.scalar_type() != whole.scalar_type() || !is_laid_out_as(slice, sizes, dense_strides(sizes, whole.strides()))) return false;
      const char* from = address_of(slice) + static_cast<size_t>(slice.storage_offset()) * slice.itemsize();
      const char* there = address_of(whole);
      bool is_same = true;
      each_chunk(Strip::of(whole, dim), begin, end,
                 [&](size_t at, size_t own, size_t bytes) { is_same = is_same && std::memcmp(there + at, from + own, bytes) == 0; });
      if (!is_same) return false;
    }
  }
  return true;
}

bool Slicing::is_same_gathered(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs) {
  Stack arguments = gathered(call, inputs);
  kernel(arguments);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor again = arguments[i].toTensor();
    const bool has_its_layout = again.sizes() == outputs[i].sizes() && again.is_contiguous() && outputs[i].is_contiguous();
    if (!has_its_layout || again.scalar_type() != outputs[i].scalar_type()) return false;
    if (std::memcmp(address_of(again), address_of(outputs[i]), again.nbytes()) != 0) return false;
  }
  return true;
}

}  // namespace memfit
