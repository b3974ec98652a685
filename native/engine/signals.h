// Signals are for the threads that run Python.
#pragma once

#include <pthread.h>

#include <csignal>

namespace memfit {

// To be called first by a thread of the engine's own.
inline void leave_signals_to_others() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace memfit
