#pragma once

#include "core/rref/rref.h"
#include "core/tensor/tensor.h"

namespace psd::services {

// The rows of one table that are to be looked up.
struct RowsQuery {
  rref::RRef table;  // an embedding table (CreateOptions::rows), or a parameter with two axes
  Tensor ids;        // i64, any shape, each in [0, rows of the table)
};

}  // namespace psd::services
