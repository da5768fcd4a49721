#pragma once

// Rows of a table by their ids, with history. Errors travel in the result (variable.h).

#include "core/autograd/variable.h"

namespace psd {

// Returns the rows `ids` of `weight` as [the extents of ids, width]. `weight` is f32 or f64 [rows,
// width]; `ids` is i64 of any shape. The gradient of the weight is dense: gradients of repeated ids
// are added up, and rows that were not looked up get zeros. For tables on owners use
// Worker::LookUpRows, which moves only the rows that are looked up.
Variable Embedding(const Variable& weight, const Variable& ids);

}  // namespace psd
