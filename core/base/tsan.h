#pragma once

// Tells ThreadSanitizer about happens-before edges through completion queues, which it cannot see
// because the packaged gRPC is not instrumented.

#if defined(__SANITIZE_THREAD__)
#define PSD_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PSD_TSAN 1
#endif
#endif

#ifdef PSD_TSAN
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#define PSD_TSAN_RELEASE(p) __tsan_release(p)
#define PSD_TSAN_ACQUIRE(p) __tsan_acquire(p)
#else
#define PSD_TSAN_RELEASE(p) static_cast<void>(p)
#define PSD_TSAN_ACQUIRE(p) static_cast<void>(p)
#endif
