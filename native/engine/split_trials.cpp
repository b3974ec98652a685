#include "split_trials.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <random>
#include <utility>

#include "engine.h"
#include "making.h"
#include "observer.h"
#include "operands.h"
#include "split_sizes.h"
#include "splitting.h"
#include "stopwatch.h"
#include "strip.h"
#include "telling.h"
#include "warnings.h"
#include "written.h"

namespace memfit {

namespace {

size_t bytes_of(const Stack& stack) {
  size_t bytes = 0;
  for (const c10::IValue& value : stack)
    each_tensor(value, [&](const at::Tensor& tensor) { bytes += tensor.defined() ? tensor.nbytes() : 0; });
  return bytes;
}

bool is_telling(const SplitCall& call, Inputs inputs) {
  return std::all_of(call.ways.begin(), call.ways.end(), [&](const Way& way) { return tell(way, inputs); });
}

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
}

// As large, and laid out alike, of numbers that could be any; nothing where that cannot be had.
std::optional<at::Tensor> any_like(const at::Tensor& tensor) {
  const bool is_long = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
  const size_t offset = static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  if (!is_long || !tensor.is_non_overlapping_and_dense() || offset % kLine != 0) return std::nullopt;
  const at::Tensor made = new_tensor(tensor.scalar_type(), tensor.sizes(), tensor.strides());
  std::minstd_rand random(1);
  std::uniform_real_distribution<double> numbers(0.25, 1.25);
  for (int64_t i = 0; i < made.numel(); ++i) {
    if (made.scalar_type() == at::kFloat)
      reinterpret_cast<float*>(address_of(made))[i] = static_cast<float>(numbers(random));
    else
      reinterpret_cast<double*>(address_of(made))[i] = numbers(random);
  }
  return made;
}

bool are_same(const at::Tensor& one, const at::Tensor& other) {
  const bool are_alike = one.defined() && other.defined() && one.scalar_type() == other.scalar_type() && is_laid_out_as(one, other.sizes(), other.strides());
  return are_alike && one.is_non_overlapping_and_dense() && std::memcmp(first_byte(one), first_byte(other), one.nbytes()) == 0;
}

// The call's inputs, with other numbers for those that would not tell; nothing where these cannot be had.
std::optional<Stack> telling_inputs(const SplitCall& call, const Stack& inputs) {
  Stack others = inputs;
  for (c10::IValue& input : others) {
    if (!input.isTensor() || !input.toTensor().defined() || !input.toTensor().is_floating_point()) continue;
    if (tells(input.toTensor(), call.ways.front().bits)) continue;
    std::optional<at::Tensor> other = any_like(input.toTensor());
    if (!other) return std::nullopt;
    input = *std::move(other);
  }
  return others;
}

// An op's results are in memory, and stay where they are until they have been compared: the op is over. Raises
// std::runtime_error when there is no room for them.
class Staying {
 public:
  // (If one of them finds no room, those before it are let go of: the other constructor has ended.)
  Staying(Engine& engine, const Stack& results) : Staying(engine) {
    for (const c10::IValue& result : results)
      each_storage(result, [&](const c10::Storage& storage, Part) {
        engine_.governing([&](Session& session) { stay(session, storage); });
      });
  }
  Staying(const Staying&) = delete;
  Staying& operator=(const Staying&) = delete;
  ~Staying() {
    for (Block* block : blocks_) engine_.unhold(block);
  }

 private:
  explicit Staying(Engine& engine) : engine_(engine) {}
  void stay(Session& session, const c10::Storage& storage) {
    Block* block = session.lasting.books.find(*storage.unsafeGetStorageImpl());
    if (block == nullptr) return;
    bring_in(session, {storage});
    Books::hold({block});
    blocks_.push_back(block);
  }

  Engine& engine_;
  std::vector<Block*> blocks_;
};

class PutBack {
 public:
  explicit PutBack(const Written& written) : written_(written) {}
  PutBack(const PutBack&) = delete;
  PutBack& operator=(const PutBack&) = delete;
  ~PutBack() { written_.put_back(); }

 private:
  const Written& written_;
};

}  // namespace

// The op's frame has what it returned, whatever goes wrong here: then it is not split.
void SplitTrials::run(SplitCall& call, const Kernel& kernel, Stack& stack) {
  const Stack inputs = stack;
  ThreadState& thread = this_thread();
  const size_t allocated_before = thread.allocated;
  const Written before(call.ways.front(), inputs_in(inputs));
  kernel(stack);
  const size_t allocated = thread.allocated - allocated_before;
  const std::vector<at::Tensor> outputs = tensors_of(stack);
  size_t made = 0;
  size_t& workspace = call.workspace_bytes;
  for (const at::Tensor& output : outputs) made += output.defined() ? output.nbytes() : 0;
  const bool is_worth = engine_.governing([&](Session& session) {
    workspace = thread.window.length(session.memory.arena->ranges.alignment());
    call.is_mapped = std::any_of(thread.touched.begin(), thread.touched.end(), [](const Block* block) { return block->mapped != nullptr; });
    return session.splitting.is_worth_trying(bytes_of(inputs) + std::max(made, workspace)) && (session.stats.budget_bytes == 0 || session.splitting.is_pressed() || call.is_mapped);
  });
  if (!is_worth) return;
  const Unheard unheard;
  Stopwatch stopwatch(thread.waited_ns);
  std::optional<Answer> answer = is_telling(call, inputs_in(inputs)) ? tried_against(outputs, before, call, kernel, inputs)
                                 : call.is_mapped                     ? std::nullopt
                                                                      : tried_with_others(call, kernel, inputs);
  thread.allocated = allocated_before + allocated;
  if (!answer) return;
  answer->workspace_bytes = workspace;
  answer->allocated_bytes = allocated;
  engine_.governing([&](Session& session) {
    if (!answer->equal.empty()) session.splitting.note_need(thread, *call.op, call.ways, inputs_in(inputs), *answer);
    session.lasting.gate.note(call.key, std::move(*answer));
  });
}

// What it was given would show nothing.
std::optional<Answer> SplitTrials::tried_with_others(const SplitCall& call, const Kernel& kernel, const Stack& inputs) try {
  const Aside aside;
  const std::optional<Stack> others = telling_inputs(call, inputs);
  if (!others) return std::nullopt;
  const Written before(call.ways.front(), inputs_in(*others));
  const PutBack at_the_end(before);
  Stack stack = *others;
  kernel(stack);
  return tried_against(tensors_of(stack), before, call, kernel, *others);
} catch (const std::exception&) {
  return std::nullopt;
}

// `outputs`: of the call when it ran whole. They, and the inputs, are in memory.
std::optional<Answer> SplitTrials::tried_against(const std::vector<at::Tensor>& outputs, const Written& before, const SplitCall& call, const Kernel& kernel,
                                             const Stack& inputs) {
  Answer answer;
  answer.op = call.op->name;
  for (const at::Tensor& output : outputs)
    if (output.defined()) answer.outputs.push_back({output.sizes().vec(), output.strides().vec(), output.scalar_type()});
  const bool are_dense = std::all_of(outputs.begin(), outputs.end(), [](const at::Tensor& each) { return !each.defined() || fills_its_storage(each); });
  SplitCall tried = call;
  const Written after(call.ways.front(), inputs_in(inputs));
  const PutBack at_the_end(after);
  try {
    const Aside aside;
    bool is_left_out = false;
    for (size_t number = 0; number < call.ways.size(); ++number) {
      tried.way = call.ways[number];
      if (tried.way.mask < 0 && !tried.way.gathers && (!are_dense || tried.way.outputs.size() != answer.outputs.size())) continue;
      const std::vector<int64_t> all = lengths(tried, inputs_in(inputs), answer.outputs);
      is_left_out |= all.empty();
      for (int64_t steps : all) {
        before.put_back();
        const bool is_same = tried.way.mask >= 0    ? is_same_in_parts(tried, kernel, inputs, outputs)
                             : tried.way.gathers ? is_same_gathered(tried, kernel, inputs, outputs)
                                                 : is_same_in(tried, kernel, inputs, outputs, steps) && after.is_as_it_was();
        if (is_same) answer.equal.push_back({static_cast<int32_t>(number), steps});
      }
      if (!all.empty() && answer.equal.size() == all.size()) break;  // as good as any
    }
    if (call.is_mapped && is_left_out && answer.equal.empty()) return std::nullopt;
  } catch (const std::exception&) {
    if (call.is_mapped) return std::nullopt;  // there may be room another time
    answer.equal.clear();
  }
  return answer;
}

// Where it runs mapped: the shortest two for which there is room, and that read what waits about once.
std::vector<int64_t> SplitTrials::lengths(const SplitCall& call, Inputs inputs, const std::vector<OutputLayout>& outputs) {
  std::vector<int64_t> all = slice_lengths(call.way, inputs, outputs);
  if (!call.is_mapped || call.way.mask >= 0 || all.empty()) return all;
  const size_t room = engine_.governing([](Session& session) {
    return std::max(session.memory.arena->ranges.largest_free(), session.residency.widest_window(/*running=*/true));
  });
  all.erase(std::remove_if(all.begin(), all.end(), [&](int64_t steps) { return !reads_pages(call.way, inputs, steps); }), all.end());
  if (all.empty()) return all;
  std::sort(all.begin(), all.end());
  all.resize(std::min<size_t>(all.size(), 2));
  all.erase(std::remove_if(all.begin(), all.end(), [&](int64_t steps) { return 2 * slice_bytes(call.way, inputs, outputs, steps) > room; }),
            all.end());
  if (all.empty()) throw std::bad_alloc();
  return all;
}

bool SplitTrials::is_same_in(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs,
                         int64_t steps) {
  for (int64_t begin = 0; begin < call.way.length; begin += steps) {
    const int64_t end = std::min(begin + steps, call.way.length);
    const Stack made = slices_.run(call, kernel, inputs, begin, end);
    for (size_t i = 0; i < call.way.outputs.size(); ++i) {
      const at::Tensor& whole = outputs[call.way.first + i];
      const at::Tensor slice = made[call.way.first + i].toTensor();
      if (call.way.outputs[i] == kEmpty && slice.numel() == 0) continue;
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

bool SplitTrials::is_same_gathered(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs) {
  Stack arguments = slices_.gathered(call, inputs);
  kernel(arguments);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor again = arguments[i].toTensor();
    const bool has_its_layout = again.sizes() == outputs[i].sizes() && again.is_contiguous() && outputs[i].is_contiguous();
    if (!has_its_layout || again.scalar_type() != outputs[i].scalar_type()) return false;
    if (std::memcmp(address_of(again), address_of(outputs[i]), again.nbytes()) != 0) return false;
  }
  return true;
}

// And what each part does in slices is tried, too. (As an op of its own, whose window says what it needs.)
bool SplitTrials::is_same_in_parts(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs) {
  const at::AutoDispatchBelowADInplaceOrView below;
  bool is_same = true;
  for (const c10::List<bool>& wanted : parts_in(call, inputs)) {
    Stack stack = part_of(call, inputs, wanted);
    const Stack given = stack;
    SplitCall part;
    part.op = call.op;
    part.key = Gate::key_of(*call.op, inputs_in(given));
    part.is_tried = true, part.is_mapped = call.is_mapped;
    part.ways = call.op->split_rule->ways(inputs_in(given));
    call.op->handle->callBoxed(stack);
    const ThreadState& thread = this_thread();
    const size_t workspace = engine_.governing([&](Session& session) { return thread.window.length(session.memory.arena->ranges.alignment()); });
    const size_t allocated = thread.allocated;
    const Staying staying(engine_, stack);
    for (size_t i = 0; i < wanted.size(); ++i) is_same = is_same && (!wanted.get(i) || are_same(stack[i].toTensor(), outputs[i]));
    std::optional<Answer> answer = part.ways.empty() ? Answer{call.op->name, {}, 0, 0, {}} : tried_part(part, kernel, given, stack);
    if (!answer) continue;
    answer->workspace_bytes = workspace;
    answer->allocated_bytes = allocated;
    engine_.governing([&](Session& session) { session.lasting.gate.note(part.key, std::move(*answer)); });
  }
  return is_same;
}

std::optional<Answer> SplitTrials::tried_part(const SplitCall& part, const Kernel& kernel, const Stack& inputs, const Stack& outputs) {
  const Written nothing(part.ways.front(), inputs_in(inputs));
  return tried_against(tensors_of(outputs), nothing, part, kernel, inputs);
}

}  // namespace memfit
