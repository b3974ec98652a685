#include "witness.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hash.h"
#include "observer.h"
#include "operands.h"

namespace memfit {

namespace {

constexpr size_t kLargest = size_t{1} << 20;  // bytes of a storage that is looked at

std::atomic<bool> witnessing{false};
std::mutex books_mutex;
std::map<std::string, Testimony> books;

uint64_t hash_of(const c10::Storage& storage) {
  return fnv1a({static_cast<const char*>(storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()), storage.nbytes()});
}

struct Seen {
  size_t argument;
  c10::Storage storage;
  size_t size;
  uint64_t hash;
};

bool is_visible(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  return impl->device_type() == at::kCPU && impl->nbytes() != 0 && impl->nbytes() <= kLargest &&
         impl->_mutable_data_ptr_no_checks().get() != nullptr;
}

// The bytes of storages, as those who are known to write to them have left them.
class Known {
 public:
  void note(const c10::IValue& value) {
    each_storage(value, [&](const c10::Storage& storage, Part) { note(storage); });
  }
  void note(const c10::Storage& storage) {
    if (is_visible(storage)) hashes_.insert_or_assign(storage.unsafeGetStorageImpl(), Kept{storage, hash_of(storage)});
  }
  void note_all(const Known& others) {
    for (const auto& [impl, kept] : others.hashes_) note(kept.storage);
  }
  // Nobody else has written to what the value lies in, as far as that is known.
  bool is_as_known(const c10::IValue& value) const {
    bool is_same = true;
    each_storage(value, [&](const c10::Storage& storage, Part) {
      const auto found = hashes_.find(storage.unsafeGetStorageImpl());
      if (found != hashes_.end()) is_same = is_same && is_as_known(found->second);
    });
    return is_same;
  }
  bool are_as_known() const {
    return std::all_of(hashes_.begin(), hashes_.end(), [](const auto& each) { return is_as_known(each.second); });
  }

 private:
  struct Kept {
    c10::Storage storage;
    uint64_t hash;
  };
  static bool is_as_known(const Kept& kept) { return !is_visible(kept.storage) || hash_of(kept.storage) == kept.hash; }

  std::unordered_map<const c10::StorageImpl*, Kept> hashes_;
};

struct Watching final : at::ObserverContext {
  Watching(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) : op(&op), outer(std::exchange(innermost, this)) {
    each_operand(op, inputs, [&](size_t i, const c10::IValue& input) {
      if (op.is_composite) known.note(input);
      if (op.may_write(i)) written.push_back(input);
      if (is_called()) outer->is_opaque |= !outer->known.is_as_known(input);
    });
  }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;
  ~Watching() override { innermost = outer; }

  // By a composite, and not by a kernel.
  bool is_called() const { return outer != nullptr && outer->op->is_composite; }
  // Whoever called it knows what it has written.
  void ends(c10::ArrayRef<c10::IValue> outputs) {
    is_opaque |= op->is_composite && !known.are_as_known();
    if (!is_called()) return;
    if (!is_opaque) outer->known.note_all(known);
    for (const c10::IValue& value : written) outer->known.note(value);
    for (const c10::IValue& output : outputs) outer->known.note(output);
  }

  const OpInfo* op;
  Watching* outer;  // the op that has called this one
  std::vector<Seen> seen;
  Known known;
  std::vector<c10::IValue> written;
  bool is_opaque = false;

 private:
  static thread_local Watching* innermost;
};
thread_local Watching* Watching::innermost = nullptr;

bool has_changed(const Seen& one) {
  return one.storage.nbytes() != one.size || !is_visible(one.storage) || hash_of(one.storage) != one.hash;
}

}  // namespace

void set_witness(bool on) { witnessing = on; }

std::map<std::string, Testimony> testimonies() {
  std::lock_guard<std::mutex> lock(books_mutex);
  return books;
}

std::unique_ptr<at::ObserverContext> witness(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (!witnessing) return nullptr;
  auto watching = std::make_unique<Watching>(op, inputs);
  std::set<const void*> known;  // what one argument says is written may be another's too
  for (const bool written : {true, false})
    for (size_t i = 0; i < inputs.size(); ++i) {
      if ((i < op.writes.size() && op.writes[i]) != written || !(written || op.reads(i))) continue;
      each_storage(inputs[i], [&](const c10::Storage& storage, Part) {
        if (known.insert(storage.unsafeGetStorageImpl()).second && is_visible(storage))
          watching->seen.push_back({i, storage, storage.nbytes(), hash_of(storage)});
      });
    }
  return watching;
}

void testify(at::ObserverContext* context, c10::ArrayRef<c10::IValue> outputs) {
  auto* watching = dynamic_cast<Watching*>(context);
  if (watching == nullptr) return;
  watching->ends(outputs);
  const OpInfo& op = *watching->op;
  bool looked = false, changed = false;
  std::set<std::string> written;
  for (const Seen& one : watching->seen) {
    const bool is_said = one.argument < op.writes.size() && op.writes[one.argument], has = has_changed(one);
    looked |= !is_said;
    changed |= !is_said && has;
    if (has) written.insert(op.arguments.at(one.argument));
  }
  std::lock_guard<std::mutex> lock(books_mutex);
  Testimony& testimony = books[op.name];
  testimony.calls += looked;
  testimony.changed += changed;
  testimony.written.merge(written);
  testimony.composed += op.is_composite;
  testimony.opaque += watching->is_opaque;
}

}  // namespace memfit
