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
  size_t argument;
  c10::Storage storage;
  size_t size;
  uint64_t hash;
};

struct Watching final : at::ObserverContext {
  const OpInfo* op = nullptr;
  std::vector<Seen> seen;
};

bool is_visible(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  return impl->device_type() == at::kCPU && impl->nbytes() != 0 && impl->nbytes() <= kLargest &&
         impl->_mutable_data_ptr_no_checks().get() != nullptr;
}

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
  auto watching = std::make_unique<Watching>();
  watching->op = &op;
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

void testify(at::ObserverContext* context) {
  auto* watching = dynamic_cast<Watching*>(context);
  if (watching == nullptr || watching->seen.empty()) return;
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
}

}  // namespace memfit
