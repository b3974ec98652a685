#include "aliases.h"

#include <c10/core/RefcountedDeleter.h>
#include <c10/core/Storage.h>
#include <elf.h>
#include <link.h>

#include <cstring>
#include <string_view>

namespace memfit {

namespace {

constexpr const char kAsked[] = "_ZN3c1020isSharedStorageAliasERKNS_7StorageES2_";
constexpr std::string_view kAsking[] = {"/libtorch_cpu.so", "/libtorch_python.so"};

#if defined(__x86_64__)
constexpr uint32_t kJump = R_X86_64_JUMP_SLOT;
#elif defined(__aarch64__)
constexpr uint32_t kJump = R_AARCH64_JUMP_SLOT;
#else
constexpr uint32_t kJump = 0;
#endif

// As torch's own, which checks the pointers first.
bool share_bytes(const c10::Storage& one, const c10::Storage& other) {
  const auto pointer = [](const c10::Storage& storage) -> const at::DataPtr& {
    return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  };
  const auto is_shared = [&](const c10::Storage& storage) { return pointer(storage).get_deleter() == &c10::refcounted_deleter; };
  return is_shared(one) && is_shared(other) && pointer(one).get_context() == pointer(other).get_context();
}

// A library that is loaded: the table of what it calls in others, as the loader has it.
struct Calls {
  const ElfW(Rela)* first = nullptr;
  size_t count = 0;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
};

Calls calls_of(const dl_phdr_info& library) {
  Calls calls;
  for (size_t i = 0; i < library.dlpi_phnum; ++i) {
    if (library.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + library.dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_PLTRELSZ) calls.count = entry->d_un.d_val / sizeof(ElfW(Rela));
      if (entry->d_tag == DT_JMPREL) calls.first = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_SYMTAB) calls.symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_STRTAB) calls.names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    }
  }
  return calls;
}

// The loader has forbidden to write there.
bool is_sealed(const dl_phdr_info& library, uintptr_t slot) {
  for (size_t i = 0; i < library.dlpi_phnum; ++i) {
    const auto& part = library.dlpi_phdr[i];
    const uintptr_t begin = library.dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_GNU_RELRO && slot >= begin && slot < begin + part.p_memsz) return true;
  }
  return false;
}

bool redirect_in(const dl_phdr_info& library) {
  const Calls calls = calls_of(library);
  // (Only glibc has put addresses there, and no offsets.)
  if (calls.first == nullptr || reinterpret_cast<uintptr_t>(calls.first) < library.dlpi_addr) return false;
  for (size_t i = 0; i < calls.count; ++i) {
    const ElfW(Rela)& call = calls.first[i];
    if (ELF64_R_TYPE(call.r_info) != kJump) continue;
    if (std::strcmp(calls.names + calls.symbols[ELF64_R_SYM(call.r_info)].st_name, kAsked) != 0) continue;
    const uintptr_t slot = library.dlpi_addr + call.r_offset;
    if (is_sealed(library, slot)) return false;
    __atomic_store_n(reinterpret_cast<void**>(slot), reinterpret_cast<void*>(&share_bytes), __ATOMIC_RELEASE);
    return true;
  }
  return false;
}

int visit(dl_phdr_info* library, size_t, void* found) {
  const std::string_view name = library->dlpi_name;
  for (std::string_view each : kAsking)
    if (name.size() >= each.size() && name.substr(name.size() - each.size()) == each) *static_cast<size_t*>(found) += redirect_in(*library);
  return 0;
}

}  // namespace

bool answer_for_aliases() {
  static const bool all = [] {
    size_t found = 0;
    dl_iterate_phdr(&visit, &found);
    return found == std::size(kAsking);
  }();
  return all;
}

}  // namespace memfit
