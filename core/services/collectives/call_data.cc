#include "core/services/collectives/call_data.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/tensor/tensor_codec.h"
#include "kernels/convert.h"
#include "kernels/rank_reduce.h"

namespace psd::services {
namespace {

kernels::RankReduction KernelOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMean:
      return kernels::RankReduction::kSum;
    case Reduction::kMin:
      return kernels::RankReduction::kMin;
    case Reduction::kMax:
      return kernels::RankReduction::kMax;
  }
  return kernels::RankReduction::kSum;
}

using Runs = absl::InlinedVector<const std::byte*, 8>;

template <typename T, typename... Divisor>
void ReduceAs(Reduction reduction, const Runs& runs, std::byte* out, size_t bytes,
              Divisor... divisor) {
  absl::InlinedVector<const T*, 8> numbers;
  for (const std::byte* run : runs) numbers.push_back(reinterpret_cast<const T*>(run));
  kernels::ReduceRanks(KernelOf(reduction), numbers.data(), numbers.size(), divisor...,
                       reinterpret_cast<T*>(out), bytes / sizeof(T));
}

void ReduceRuns(DType dtype, Reduction reduction, const Runs& runs, std::byte* out, size_t bytes) {
  const float divisor = reduction == Reduction::kMean ? static_cast<float>(runs.size()) : 1;
  switch (dtype) {
    case DType::kF32:
      return ReduceAs<float>(reduction, runs, out, bytes, divisor);
    case DType::kF64:
      return ReduceAs<double>(reduction, runs, out, bytes, double{divisor});
    case DType::kF16:
      return ReduceAs<kernels::Half>(reduction, runs, out, bytes, divisor);
    case DType::kBF16:
      return ReduceAs<kernels::BFloat16>(reduction, runs, out, bytes, divisor);
    case DType::kI32:
      return ReduceAs<int32_t>(reduction, runs, out, bytes);
    case DType::kI64:
      return ReduceAs<int64_t>(reduction, runs, out, bytes);
    case DType::kU8:
    case DType::kBool:
      break;
  }
  PSD_CHECK(false, "CheckCall lets no such dtype pass");
}

int InputsOf(const CollectiveCall& call, int rank, int ranks) {
  switch (call.operation) {
    case Operation::kBarrier:
      return 0;
    case Operation::kBroadcast:
      return call.root == rank ? 1 : 0;
    case Operation::kScatter:
      return call.root == rank ? ranks : 0;
    default:
      return 1;
  }
}

}  // namespace

absl::Status CallData::CheckInputs(const CollectiveCall& call, const std::vector<Tensor>& inputs,
                                   int rank, int ranks) {
  const int expected = InputsOf(call, rank, ranks);
  if (static_cast<int>(inputs.size()) != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(call.ToString(), ": ", inputs.size(), " tensors, expected ", expected));
  }
  for (const Tensor& input : inputs) {
    if (!call.form.has_value() || !input.defined() ||
        TensorForm{input.dtype(), input.shape()} != *call.form) {
      return absl::InvalidArgumentError(
          absl::StrCat(call.ToString(), ": got a tensor ", input.ToString()));
    }
    // The results go to where the first input is, and its device orders the call.
    if (input.device() != inputs[0].device())
      return MixedDevices(call.ToString(), inputs[0].device(), input.device());
  }
  return absl::OkStatus();
}

absl::StatusOr<CallData::Own> CallData::Prepare(CollectiveCall call, std::vector<Tensor> inputs,
                                                int rank, int ranks, Allocator* memory) {
  PSD_RETURN_IF_ERROR(CheckInputs(call, inputs, rank, ranks));
  for (Tensor& input : inputs) {
    PSD_ASSIGN_OR_RETURN(input, input.ToHost(memory));
    PSD_ASSIGN_OR_RETURN(input, std::move(input).Contiguous(memory));
  }
  Own own{std::move(call), std::move(inputs), Tensor()};
  if (!Reduces(own.call.operation)) return own;
  Shape shape = own.call.form->shape;
  if (own.call.operation == Operation::kReduceScatter) {
    std::vector<int64_t> extents(shape.extents().begin(), shape.extents().end());
    extents[0] /= ranks;
    PSD_ASSIGN_OR_RETURN(shape, Shape::Checked(extents));
  }
  PSD_ASSIGN_OR_RETURN(own.result, Tensor::Empty(shape, own.call.form->dtype, memory));
  return own;
}

void CallData::Bring(Own own) {
  own_ = std::move(own);
}

void CallData::SetPlan(const TensorForm* form, const CallPlan& plan) {
  if (form != nullptr) own_.call.form = *form;
  plan_ = plan;
  for (int from = 0; from < static_cast<int>(received_.size()); ++from)
    received_[from].resize(std::max(received_[from].size(), plan.Pieces(0, from, rank_)));
}

void CallData::Keep(int from, size_t index, Buffer piece) {
  std::vector<Buffer>& pieces = received_[from];
  if (pieces.empty()) pieces.resize(1);
  pieces[index] = std::move(piece);
}

Buffer CallData::Outgoing(int phase, int to, size_t index) const {
  const Range range = plan_->Piece(phase, rank_, to, index);
  if (phase == 1) return own_.result.AsBuffer().Slice(range.offset, range.size);
  const size_t input = own_.call.operation == Operation::kScatter ? static_cast<size_t>(to) : 0;
  return own_.inputs[input].AsBuffer().Slice(range.offset, range.size);
}

void CallData::ReduceInto(const Range& range, size_t index, std::byte* out) const {
  Runs runs;
  for (int rank = 0; rank < static_cast<int>(received_.size()); ++rank) {
    runs.push_back(rank == rank_ ? own_.inputs[0].raw_data() + range.offset
                                 : received_[rank][index].data());
  }
  ReduceRuns(own_.call.form->dtype, *own_.call.reduction, runs, out, range.size);
}

void CallData::Reduce(size_t index) {
  const Range piece = plan_->Piece(0, rank_, rank_, index);
  const size_t start = plan_->has_second_phase() ? 0 : plan_->Block(0, rank_, rank_).offset;
  ReduceInto(piece, index, own_.result.mutable_raw_data() + piece.offset - start);
  for (std::vector<Buffer>& pieces : received_) pieces[index] = Buffer();
}

void CallData::Store(int from, size_t index, const Buffer& piece) {
  const Range range = plan_->Piece(1, from, rank_, index);
  std::memcpy(own_.result.mutable_raw_data() + range.offset, piece.data(), range.size);
}

absl::StatusOr<Tensor> CallData::Received(int from, int& wrong) {
  const TensorForm& form = *own_.call.form;
  if (plan_->Pieces(0, from, rank_) == 0) return Tensor::Empty(form.shape, form.dtype);
  absl::StatusOr<Tensor> tensor =
      DecodeTensor({form.shape, form.dtype, form.NumBytes()}, std::move(received_[from][0]));
  if (absl::IsInvalidArgument(tensor.status())) wrong = from;
  return tensor;
}

absl::StatusOr<std::vector<Tensor>> CallData::Results(int& wrong) {
  const CollectiveCall& call = own_.call;
  std::vector<Tensor> results;
  switch (call.operation) {
    case Operation::kBarrier:
      return results;
    case Operation::kAllReduce:
    case Operation::kReduceScatter: {
      const Range block = plan_->Block(0, rank_, rank_);
      if (!plan_->reduces_pieces() && block.size > 0)
        ReduceInto(block, 0, own_.result.mutable_raw_data());
      results.push_back(own_.result);
      return results;
    }
    case Operation::kBroadcast:
    case Operation::kScatter: {
      if (call.root == rank_) {
        results.push_back(own_.inputs[call.operation == Operation::kScatter ? rank_ : 0]);
        return results;
      }
      PSD_ASSIGN_OR_RETURN(results.emplace_back(), Received(call.root, wrong));
      return results;
    }
    case Operation::kGather:
      if (call.root != rank_) return results;
      break;
    case Operation::kAllGather:
      break;
  }
  for (int from = 0; from < static_cast<int>(received_.size()); ++from) {
    if (from == rank_) {
      results.push_back(own_.inputs[0]);
    } else {
      PSD_ASSIGN_OR_RETURN(results.emplace_back(), Received(from, wrong));
    }
  }
  return results;
}

}  // namespace psd::services
