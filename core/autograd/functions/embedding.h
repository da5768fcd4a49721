#pragma once

// Rows of a table by their ids, with history. Errors travel in the result (variable.h).

#include "core/autograd/variable.h"

namespace psd {

// [the extents of ids, width] of weight [rows, width] (f32 or f64) and ids (i64, any shape): row
// ids[i] at i. The gradient of the weight is dense: those of repeated ids added up, zeros
// elsewhere. For tables on owners Worker::LookUpRows moves the rows concerned only.
Variable Embedding(const Variable& weight, const Variable& ids);

}  // namespace psd
