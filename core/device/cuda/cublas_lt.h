#pragma once

// cublasLt, the library of CUDA that multiplies matrices. psd does not link it: it has half a
// gigabyte, and an owner that multiplies nothing does not need it.

#include <cublasLt.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::cuda {

// Functions of the library, as cublasLt.h declares them. A value.
struct CublasLt {
  decltype(&cublasLtGetVersion) GetVersion;
  decltype(&cublasLtGetStatusName) GetStatusName;
  decltype(&cublasLtGetStatusString) GetStatusString;
  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtDestroy) Destroy;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmul) Matmul;
};

// Loads the library from the file `library`. If that is empty, looks for the version that psd was
// built with, first where the system's loader looks and then where NVIDIA's packages put it. The
// library stays loaded until the process ends. Needs no GPU.
// Errors: FAILED_PRECONDITION naming the device, what was searched and what is wrong with it, if
// the library is missing, has another major version, or lacks a function.
absl::StatusOr<CublasLt> LoadCublasLt(absl::string_view device, const std::string& library);

}  // namespace psd::cuda
