#pragma once

// The two ends of a tensor's way between workers, as nodes of the graphs on either side.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/base/ids.h"

namespace psd::dist_autograd {

// Where tensors left: gradients that come back from the receiver enter the local graph here, one
// input per tensor that required grad. It passes them on unchanged.
class SendFunction : public ListNode {
 public:
  // The edges of those of `variables` that require grad, in order.
  SendFunction(GlobalId message, const std::vector<Variable>& variables);
  // For leaves: no graph leads to them, and no engine runs it. Their gradients are collected as
  // they come. Requires: there is at least one.
  SendFunction(GlobalId message, std::vector<LeafInfo> leaves);

  absl::string_view Name() const override { return "Send"; }
  int NumInputs() const override { return static_cast<int>(sent_.size()); }
  // Errors: INVALID_ARGUMENT when no gradient at all is given, or a wrong number of them.
  absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                     absl::Span<Tensor> results) override;
  GlobalId message() const { return message_; }
  // One per gradient if it was made for leaves, else none.
  absl::Span<const LeafInfo> leaves() const {
    return leaves_ ? absl::MakeConstSpan(sent_) : absl::Span<const LeafInfo>();
  }
  // What each gradient must look like (undefined: none came); an empty list stands for none at
  // all. Checked where gradients arrive.
  // Errors: INVALID_ARGUMENT naming message, gradient, what is wanted and what came.
  absl::Status CheckGradients(const Tensors& gradients) const;
  // Zeros in place of gradients that did not come.
  absl::Status FillZeros(Tensors& gradients) const;

 private:
  const GlobalId message_;
  const bool leaves_;
  std::vector<LeafInfo> sent_;  // keys and versions of leaves only
};

// Where tensors arrived: gradients of all of them leave to the sender together. Only a distributed
// pass can run it: the sink of any other refuses.
class RecvFunction : public Node {
 public:
  RecvFunction(GlobalId context, GlobalId message, std::string peer, int tensors,
               std::vector<GlobalId> upstream, bool foreign);

  absl::string_view Name() const override { return "Recv"; }
  int NumInputs() const override { return tensors_; }
  // Errors: FAILED_PRECONDITION outside a distributed pass; what the sink's Deliver says.
  absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                     absl::Span<Tensor> results) override;
  // The sender waits for word of this message, be there gradients or not.
  bool RunsWithoutGradients() const override { return true; }

  GlobalId context() const { return context_; }
  // Made by the sender, so its incarnation is the sender's.
  GlobalId message() const { return message_; }
  const std::string& peer() const { return peer_; }
  // Messages of *this* worker on which the received tensors depend directly, as the sender told;
  // they will receive gradients if this function does.
  const std::vector<GlobalId>& upstream() const { return upstream_; }
  // They depend on messages of other workers too: marks must be asked for.
  bool foreign() const { return foreign_; }

 private:
  const GlobalId context_;
  const GlobalId message_;
  const std::string peer_;
  const int tensors_;
  const std::vector<GlobalId> upstream_;
  const bool foreign_;
};

// The sink of a distributed pass: beside the gradients of leaves it takes those that leave.
class DistributedSink : public GradientSink {
 public:
  // Called once per receive function and pass. `gradients`: one per tensor, undefined = none.
  virtual absl::Status Deliver(const RecvFunction& recv, Tensors gradients) = 0;
};

}  // namespace psd::dist_autograd
