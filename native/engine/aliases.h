// Aliases: whether two storages share their bytes.
//
// torch asks both for their pointers, which raises an error for one that is away, though it reads no byte of either
// (c10::isSharedStorageAlias). DDP's reducer asks in C++, between ops, of gradients and of its buckets.
#pragma once

namespace memfit {

// Have torch's libraries ask here instead, for good. False: they don't all ask in a way that is known.
bool answer_for_aliases();

}  // namespace memfit
