#pragma once

// The two ends of a tensor's way between workers, as nodes of the graphs on either side.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/base/ids.h"

namespace psd::dist_autograd {

// Where tensors left: gradients that come back from the receiver enter the local graph here, one
// input per tensor that required grad. It passes them on unchanged.
class SendFunction : public Node {
 public:
  SendFunction(GlobalId message, const std::vector<Variable>& variables);

  std::string Name() const override { return "Send"; }
  int NumInputs() const override { return static_cast<int>(next().size()); }
  // Errors: INVALID_ARGUMENT when no gradient at all is given.
  absl::StatusOr<std::vector<Tensor>> Apply(PassContext& pass,
                                            std::vector<Tensor> gradients) override;
  GlobalId message() const { return message_; }
  // What each gradient must look like; checked where gradients arrive.
  absl::Status CheckGradients(const std::vector<Tensor>& gradients) const;

 private:
  struct Expected {
    Shape shape;
    DType dtype;
  };
  const GlobalId message_;
  std::vector<Expected> expected_;
};

// Where tensors arrived: gradients of all of them leave to the sender together.
class RecvFunction : public Node {
 public:
  // What is done with the gradients of this message; set by the pass that runs.
  using Deliver = std::function<absl::Status(const RecvFunction&, std::vector<Tensor>)>;

  RecvFunction(GlobalId context, GlobalId message, std::string peer, int tensors,
               std::vector<GlobalId> upstream, bool foreign);

  std::string Name() const override { return "Recv"; }
  int NumInputs() const override { return tensors_; }
  absl::StatusOr<std::vector<Tensor>> Apply(PassContext& pass,
                                            std::vector<Tensor> gradients) override;

  GlobalId context() const { return context_; }
  GlobalId message() const { return message_; }
  const std::string& peer() const { return peer_; }
  // Messages of *this* worker on which the received tensors depend, as the sender told; they will
  // receive gradients if this function does.
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

}  // namespace psd::dist_autograd
