#include "witness.h"

#include <atomic>
#include <mutex>
#include <set>
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
  c10::Storage storage;
  size_t size;
  uint64_t hash;
};

struct Watching final : at::ObserverContext {
  const OpInfo* op = nullptr;
  std::vector<Seen> unmarked;
};

bool is_visible(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  return impl->device_type() == at::kCPU && impl->nbytes() != 0 && impl->nbytes() <= kLargest &&
         impl->_mutable_data_ptr_no_checks().get() != nullptr;
}

}  // namespace

void set_witness(bool on) { witnessing = on; }

std::map<std::string, Testimony> testimonies() {
  std::lock_guard<std::mutex> lock(books_mutex);
  return books;
}

std::unique_ptr<at::ObserverContext> witness(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (!witnessing) return nullptr;
  std::set<const void*> seen;  // what is written by one argument may be another's too
  for (size_t i = 0; i < inputs.size(); ++i)
    if (i < op.writes.size() && op.writes[i])
      each_storage(inputs[i], [&](const c10::Storage& storage, Part) { seen.insert(storage.unsafeGetStorageImpl()); });
  auto watching = std::make_unique<Watching>();
  watching->op = &op;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!op.reads(i)) continue;
    each_storage(inputs[i], [&](const c10::Storage& storage, Part) {
      if (is_visible(storage) && seen.insert(storage.unsafeGetStorageImpl()).second)
        watching->unmarked.push_back({storage, storage.nbytes(), hash_of(storage)});
    });
  }
  return watching;
}

void testify(at::ObserverContext* context) {
  auto* watching = dynamic_cast<Watching*>(context);
  if (watching == nullptr || watching->unmarked.empty()) return;
  bool changed = false;
  for (const Seen& one : watching->unmarked)
    changed |= one.storage.nbytes() != one.size || !is_visible(one.storage) || hash_of(one.storage) != one.hash;
  std::lock_guard<std::mutex> lock(books_mutex);
  Testimony& testimony = books[watching->op->name];
  ++testimony.calls;
  testimony.changed += changed;
}

}  // namespace memfit
