// Engine: sessions begin and end, storages and ops come and go.
#include "engine.h"

#include <algorithm>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include "nested.h"
#include "observer.h"
#include "operands.h"
#include "pointers.h"
#include "split_kernels.h"
#include "values.h"

namespace memfit {

ThreadState& this_thread() {
  static thread_local ThreadState state;
  return state;
}

Engine& Engine::get() {
  static auto* engine = new Engine;  // never destroyed: storages may outlive every static
  return *engine;
}

void Engine::start(const SessionSettings& settings) {
  Device& device = settings.device;
  const size_t unlimited = settings.most != 0 ? std::min(settings.most, device.limit(0)) : device.limit(0);
  const size_t limit = settings.budget == 0 ? unlimited : device.limit(settings.budget);
  if (limit == 0) refuse_less_than(device.page(), settings.budget);
  note_history(device.keeps_history());
  try {
    begin(settings, limit, settings.grows ? std::max(limit, unlimited) : limit);
  } catch (const std::bad_alloc&) {
    refuse_budget(settings.budget, "the system does not give this process " + format_bytes(limit) +
                                       " of addresses (ulimit -v, or vm.overcommit_memory = 2, may limit them)", 0);
  }
  callback_ = add_observer();
}

void Engine::note_history(bool on) {
  lasting_.flags.takes_interpreter = on;
  if (on) Lock lock(*this);  // who has the mutex without the interpreter is done with it
}

void Engine::begin(const SessionSettings& settings, size_t limit, size_t most) {
  Lock lock(*this);
  if (lock.session() != nullptr) throw std::runtime_error("a memfit session is active already; end it before starting another");
  install_fork_handlers();
  settings.device.install();
  if (std::find(devices_.begin(), devices_.end(), &settings.device) == devices_.end()) devices_.push_back(&settings.device);
  lasting_.books.begin_session();
  lasting_.last_failure = Failure();
  lasting_.flags.inert = false;
  lasting_.flags.splits = lasting_.stress == Stress::kSplit;
  session_ = std::make_unique<Session>(lasting_, settings, limit, most);
  lasting_.turns.open();
  lasting_.flags.governed = &settings.device;
}

void Engine::set_budget(size_t budget) {
  const size_t page = governing([&](Session& session) -> size_t {
    if (session.memory.device->limit(budget) == 0) return session.memory.device->page();
    session.set_budget(budget);
    return 0;
  });
  if (page != 0) refuse_less_than(page, budget);
}

void Engine::refuse_less_than(size_t page, size_t budget) {
  refuse_budget(budget, "it is less than one page of the device's memory, " + format_bytes(page), page);
}

void Engine::refuse_budget(size_t budget, const std::string& why, size_t required_bytes) {
  Failure failure;
  failure.kind = Failure::Kind::kBudget;
  failure.required_bytes = required_bytes;
  failure.message = budget != 0 ? "memfit: the budget of " + format_bytes(budget) + " cannot be met"
                                : std::string("memfit: there is no memory left");
  failure.message += ": " + why;
  {
    Lock lock(*this);
    lasting_.last_failure = failure;
  }
  raise(failure);
}

StopReport Engine::stop() {
  StopReport report;
  governing([](Session& session) { session.discarding.stop(); });
  recomputing_.make_all();
  if (Device* device = governing([](Session& session) { return session.memory.device; })) device->cool_down();
  std::function<void()> told;  // it has Python's objects: they go where nothing is locked
  std::vector<Books::StorageRef> alive = live_storages();
  {
    Lock lock(*this);
    if (lock.session() == nullptr) return report;
    if (!lasting_.flags.inert) lasting_.collectives.close();
    told = lock.session()->progress.iterations().tell(nullptr);
    report = end(*lock.session());
    session_.release()->is_over = true;  // whoever leaves it last destroys it
  }
  remove_observer(callback_);
  return report;
}

StopReport Engine::end(Session& session) {
  Memory& memory = session.memory;
  lasting_.flags.governed = nullptr;
  lasting_.ghosts.record_to(nullptr);
  session.close();
  lasting_.turns.close();
  const bool reachable = !lasting_.flags.inert || !memory.device->is_asynchronous();
  Restored restored;
  if (reachable) restoring_.restore_all(memory, restored);
  session.ordinary.free_all(*memory.device);
  session.copies.close();
  if (reachable) memory.device->finish();
  if (reachable) memory.device->session_ended(restored.left != 0);
  memory.tier->freeze();  // what could not be read back lies where it does: a child may have better luck
  StopReport report{restored.count, restored.left, {}};
  for (auto& [tier, why] : restored.lost)  // what an earlier session lost is not this one's loss
    if (tier == memory.tier.get()) report.lost.push_back(std::move(why));
  return report;
}

// References to all storages, had before the mutex is taken: for some of them the interpreter is needed.
std::vector<Books::StorageRef> Engine::live_storages() {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> known;
  {
    Lock lock(*this);
    for (const Block* block : lasting_.books.all())
      if (block->attached()) known.push_back(block->storage);
  }
  std::vector<Books::StorageRef> alive;
  for (const auto& storage : known)
    if (Books::StorageRef reference = storage.lock()) alive.push_back(std::move(reference));
  return alive;
}

// The CPU's allocator takes whatever no other device knows.
Device& Engine::device_of(const void* address) const {
  for (Device* device : devices_)
    if (device != &host() && device->allocated(address)) return *device;
  return host();
}

at::DataPtr Engine::allocate(Device& device, size_t bytes) {
  if (bytes == 0 || lasting_.flags.governed != &device || lasting_.flags.inert) return device.ordinary().allocate(bytes);
  ThreadState& thread = this_thread();
  bool inside = thread.depth > 0;
  int64_t source = inside ? thread.source : current_source();
  std::optional<Failure> failure;
  at::DataPtr made;
  {
    Lock lock(*this);
    Session* session = lock.governing();
    if (session == nullptr) return device.ordinary().allocate(bytes);
    session->refusals.hand_on(thread);
    if (inside) session->ops.join_late(thread, bytes);
    if (thread.failure.kind == Failure::Kind::kNone) {
      if (Block* block = session->allocation.allocate(thread, bytes, inside, source))
        made = {block->address(), block->address(), &delete_by_address, device.name()};
      if (!made && lock.governing() == nullptr) return device.ordinary().allocate(bytes);  // it ended while this thread waited
    }
    if (!made) {
      failure = thread.failure;
      thread.untold = false;
    }
    if (!made && (!inside || thread.adapting)) thread.failure = Failure();
  }
  say();
  if (made) return made;
  TORCH_CHECK_WITH(OutOfMemoryError, !thread.adapting, in_words(*failure));
  raise(*failure);
}

void Engine::release(Session* session, Block* block) {
  ThreadState& thread = this_thread();
  if (thread.depth > 0 && block->active > 0 && block->born_in == thread.serial) thread.window.give_back(block->ticket);
  const bool inert = lasting_.flags.inert;
  if (session != nullptr && !inert) return session->allocation.release(thread, block);
  if (block->resident()) {
    if (!inert) block->device->released(block->address());
    lasting_.books.give_up(*block, /*with_pages=*/!inert);
  }
  lasting_.books.remove(block);
}

void Engine::release_by_address(void* address) {
  if (release_if_known(address)) return;
  device_of(address).ordinary().raw_deleter()(address);  // raw memory from before the first session
}

bool Engine::release_if_known(void* address) {
  Lock lock(*this);
  Block* block = lasting_.books.find_at(address);
  if (block != nullptr) release(lock.session(), block);
  return block != nullptr;
}

void Engine::release_by_block(Block* block) {
  Lock lock(*this);
  release(lock.session(), block);
}

void Engine::op_begins(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs,
                       int64_t source, int64_t sequence_number) {
  enter_op(thread, op);
  if (thread.depth == 1 && lasting_.collectives.any()) governing([this](Session&) { lasting_.collectives.reap_few(); });
  const bool may_be_split = op.split_rule != nullptr && lasting_.flags.splits && thread.working.is_outermost(thread.depth);
  if (const Device* device = device_of_settled(thread))
    if (!may_be_split && is_settled(thread, op, inputs, thread.doubts(*device))) return;
  if (thread.depth == 1 && !thread.recomputing && lasting_.flags.repeats) repeating_.run_before(op, inputs);
  for (int attempt = 0; attempt <= kAttempts; ++attempt) {
    const std::vector<Block*> wanted = begin_op(thread, op, inputs, source, sequence_number, attempt);
    if (wanted.empty()) return;
    const Recorder::Stop stop = governing([](Session& session) { return session.recorder.clock_stops(); });
    recomputing_.make(wanted);
    governing([&stop](Session& session) { session.recorder.clock_goes_on(stop); });
    thread.remade = true;
  }
}

// Returns what has to be made again first (held), and has not begun then. Otherwise it begins under the lock under which
// that was seen, so that no other thread can discard it in between.
std::vector<Block*> Engine::begin_op(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, int64_t source,
                                     int64_t sequence_number, int attempt) {
  const bool outermost = thread.depth == 1;
  if (!outermost) thread.at_once = false;  // what it does is not what was foreseen
  Lock lock(*this);
  Session* session = lock.session();
  if (session == nullptr) return {};
  if (lasting_.flags.inert) {
    read_in_child(op, inputs);
    return {};
  }
  if (outermost) lasting_.turns.wait_for_standstill(thread);
  if (lock.governing() == nullptr) return {};
  if (outermost && attempt == 0 && !thread.recomputing) session->pressing.discard_all(lasting_.stress);
  std::vector<Block*> wanted;
  if (attempt < kAttempts) wanted = session->discarding.wanted_by(op, inputs, thread.doubts(*session->memory.device));
  Books::hold(wanted);
  if (wanted.empty()) session->ops.begin(thread, op, inputs, outermost, source, sequence_number);
  return wanted;
}

// A storage that a child has fetched lies in ordinary memory from then on. (One that cannot be had tells its reader so.)
void Engine::read_in_child(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) try {
  Restored ignored;
  for (size_t i = 0; i < inputs.size(); ++i)
    each_storage(inputs[i], [&](const c10::Storage& storage, Part part) {
      if (!session_->memory.device->has(storage.device()) || (part == Part::kElements && !op.reads(i))) return;
      Block* block = lasting_.books.find(*storage.unsafeGetStorageImpl());
      if (block == nullptr || block->resident()) return;
      lasting_.books.attach(*block, storage);
      restoring_.restore(*block, ignored);
    });
} catch (const std::exception&) {
  // torch would only log it.
}

void Engine::run_split(const Kernel& kernel, Stack& stack) {
  if (Gate::key_of(*split_call->op, Inputs(stack.data(), stack.size())) != split_call->key) return kernel(stack);  // another call, on the way to it
  split_call = nullptr;
  slicing_.run(std::move(this_thread().split), kernel, stack);
}

void Engine::allow_splits(bool is_allowed, bool tries_ahead, bool is_forced, bool is_planned_for) {
  if (is_allowed) override_kernels();
  governing([&](Session& session) {
    session.splitting.allow(is_allowed, tries_ahead, is_forced, is_planned_for);
    lasting_.flags.splits = is_allowed || lasting_.stress == Stress::kSplit;
  });
}

std::unordered_map<uint64_t, Answer> Engine::split_answers() {
  Lock lock(*this);
  return lasting_.gate.all();
}

void Engine::know_splits(std::unordered_map<uint64_t, Answer> answers) {
  Lock lock(*this);
  lasting_.gate.replace(std::move(answers));
}

bool Engine::op_begins_at_once(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::TensorImpl*> tensors) {
  const Flags& flags = lasting_.flags;
  if (thread.depth != 0 || thread.suspended != 0 || flags.inert || flags.records) return false;
  {
    Lock lock(*this, std::try_to_lock);
    Session* session = lock.governing();
    if (session == nullptr) return false;
    enter_op(thread, op);
    if (!session->at_once.begin(thread, op, tensors)) {
      leave_op(thread);
      return false;
    }
  }
  if (thread.failure.kind == Failure::Kind::kNone) return true;
  thread.failure = Failure();  // whoever begins it anew learns it
  thread.untold = false;
  op_ends(thread, op, {});
  return false;
}

void Engine::op_ends(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs) {
  if (thread.split && thread.split->depth == thread.depth) {  // its kernel was not reached
    split_call = nullptr;
    thread.split.reset();
  }
  std::function<void()> tell;
  if (device_of_settled(thread) != nullptr && are_settled(thread, outputs)) return leave_op(thread);
  const std::shared_ptr<const Recipe> tried = thread.tries && thread.leaf == thread.depth ? thread.recipe : nullptr;
  if (tried && op.may_be_in_place) trying_.op_ended(thread, outputs);
  const Device* device = tried ? lasting_.flags.governed.load() : nullptr;
  const bool is_tried_again = device != nullptr && device->is_asynchronous();
  if (is_tried_again) {
    governing([&](Session& session) { session.ops.show_outputs(thread, op, outputs); });
    trying_.outputs_kept(thread, tried);
  }
  {
    Lock lock(*this);
    if (thread.depth == 0) return;  // its beginning was not seen
    Session* session = lock.governing();
    const bool is_as_foreseen = thread.depth == 1 && AtOnce::may_end(thread);
    if (session != nullptr && !is_as_foreseen && !is_tried_again) session->ops.show_outputs(thread, op, outputs);
    leave_op(thread);
    if (thread.depth > 0 || is_inert()) return;
    if (session != nullptr && thread.session == lasting_.books.session())
      tell = is_as_foreseen ? session->at_once.end(thread) : session->ops.end(thread);
    else
      close_frame(session, thread);
  }
  if (tell) tell();
}

// Inside of an op most calls are given, and return, what it uses already: nothing is to be done for these. The session's
// device, where that may be so; nullptr where every call is of interest.
const Device* Engine::device_of_settled(const ThreadState& thread) const {
  if (thread.depth < 2 || !knows_its_storages(thread) || lasting_.flags.inert || lasting_.flags.tracks) return nullptr;
  const Device* device = lasting_.flags.governed;
  return device != nullptr && !(device->is_asynchronous() && device->is_aside()) ? device : nullptr;
}

void Engine::enter_op(ThreadState& thread, const OpInfo& op) {
  ++thread.depth;
  thread.verified.op_begins(op.verified, thread.depth);
  thread.adapting.op_begins(op.adapts, thread.depth);
  thread.working.op_begins(!op.passes_on, thread.depth);
}

void Engine::leave_op(ThreadState& thread) {
  thread.verified.op_ends(thread.depth);
  thread.adapting.op_ends(thread.depth);
  thread.working.op_ends(thread.depth);
  --thread.depth;
}

// The thread's op began in a session that has ended.
void Engine::close_frame(Session* session, ThreadState& thread) {
  thread.end([&](Block& block) { let_go(session, block); });
  thread.untold = false;
  thread.failure = Failure();
  lasting_.turns.op_is_over(thread);
}

void Engine::let_go(Session* session, Block& block) {
  if (session != nullptr)
    lasting_.books.let_go(block);
  else
    restoring_.let_go(block);
}

void Engine::watch_meta() {
  Ghosts::watch();
  Lock lock(*this);
  lasting_.ghosts.record_to(lock.session() != nullptr ? &lock.session()->recorder : nullptr);
}

Block* Engine::allocate_ghost(size_t bytes) {
  if (bytes == 0 || !lasting_.ghosts.are_watched()) return nullptr;
  ThreadState& thread = this_thread();
  const int64_t source = thread.depth > 0 ? thread.source : (recording() ? current_source() : -1);
  Lock lock(*this);
  return lasting_.ghosts.allocate(thread, bytes, source);
}

void Engine::release_ghost(Block* ghost) {
  Lock lock(*this);
  lasting_.ghosts.release(ghost);
}

void Engine::say() {
  if (!lasting_.flags.has_notices.load(std::memory_order_relaxed) || !is_python_thread()) return;
  std::vector<std::string> notices = in_session([](Session& session) { return session.notices.take(); });
  const std::string source = source_text(current_source());
  for (const std::string& notice : notices)
    if (say_line_) say_line_("memfit: " + notice + (source.empty() ? "" : " (" + source + ")"));
}

void Engine::on_period(std::function<void()> action) {
  Lock lock(*this);
  if (lock.session() != nullptr) action = lock.session()->progress.iterations().tell(std::move(action));
  // The one before goes when nothing is locked any more.
}

// What is kept as recipes is true only as long as all ops are seen.
void Engine::set_stress(Stress stress) {
  if (stress == Stress::kSplit) override_kernels();
  recomputing_.make_all();
  Lock lock(*this);
  lasting_.stress = stress;
  lasting_.captures = stress == Stress::kRecompute;
  lasting_.flags.splits = stress == Stress::kSplit || (session_ != nullptr && session_->splitting.is_allowed());
  lasting_.flags.tracks = lasting_.captures || lasting_.flags.repeats || lasting_.flags.drops;
  if (lasting_.flags.tracks) return;
  for (Block* block : lasting_.books.all()) Values::end(*block);
}

std::array<int64_t, 3> Engine::in_use() {
  Lock lock(*this);
  std::array<int64_t, 3> sums{lasting_.turns.begun(), 0, 0};
  for (const Block* block : lasting_.books.all()) {
    sums[1] += block->active - (block->copy ? 1 : 0);
    sums[2] += block->aside;
  }
  return sums;
}

void Engine::note_failure_source(const std::string& source) {
  Lock lock(*this);
  lasting_.last_failure.source = source;
}

Failure Engine::last_failure() {
  Lock lock(*this);
  return lasting_.last_failure;
}

}  // namespace memfit
