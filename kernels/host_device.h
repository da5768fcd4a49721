#pragma once

// Marks functions that kernels on the CPU and on GPUs share.

// Stands before a function that nvcc compiles for the host and for the device. Other compilers see
// a plain function.
#ifdef __CUDACC__
#define PSD_HOST_DEVICE __host__ __device__
#else
#define PSD_HOST_DEVICE
#endif
