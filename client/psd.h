#pragma once

// The public interface for trainers, and for daemons with functions of their own. A program needs
// no other header, except client/calls.h and client/checkpoint.h for what they add; a daemon needs
// server/daemon/daemon.h too. Its parts are the headers at its end, to be read in this order:
//
//   1. client/function.h    Function: a program of operators, or a registered C++ function
//   2. client/worker.h      Worker: a member of the job; creates and fetches values, calls workers
//   3. client/context.h     Context: one distributed-autograd pass
//   4. client/optimizers.h  DistributedOptimizer: steps parameters on the owners that hold them
//
// client/worker_info.h has the names of workers: WorkerInfo for a member of the job, and Callee for
// the worker that a call goes to.
//
// An owner is a worker that holds values for others, as a rule a psd daemon; a trainer owns what
// Remote leaves on it. One owner of a job is its registrar: it gives ranks and addresses, and runs
// barriers. A trainer pulls parameters from owners, computes a loss, runs backward, and asks the
// owners to step. Many trainers may share parameters and optimizers. A trainer in outline:
//
//   psd::WorkerOptions options;
//   options.name = "trainer0";
//   options.owners = {{"owner0", "127.0.0.1:7071"}};
//   PSD_ASSIGN_OR_RETURN(auto worker, psd::Worker::Start(options));
//   psd::CreateOptions parameter;
//   parameter.requires_grad = true;
//   PSD_ASSIGN_OR_RETURN(psd::RRef w, worker->GetOrCreate("owner0", "w",
//       psd::Uniform({10, 784}, -0.03, 0.03, /*seed=*/1), parameter));
//   psd::Adam adam;
//   adam.lr = 1e-3;
//   PSD_ASSIGN_OR_RETURN(auto optimizer,
//       psd::DistributedOptimizer::Create(*worker, "main", adam, {w}));
//   for (const Batch& batch : batches) {
//     PSD_ASSIGN_OR_RETURN(psd::Context context, worker->NewContext());
//     PSD_ASSIGN_OR_RETURN(auto parameters, worker->ToHere({w}, context));
//     psd::Variable loss = psd::CrossEntropy(psd::Linear(batch.x, parameters[0]), batch.y);
//     PSD_RETURN_IF_ERROR(context.Backward({loss}));
//     PSD_RETURN_IF_ERROR(optimizer->Step(context));
//   }
//   PSD_RETURN_IF_ERROR(worker->Shutdown());
//
// Tensors (psd::Tensor), differentiable operators on variables (psd::Linear, psd::Relu, …) and
// errors (absl::Status, psd::GetDetail) come with this header. client/calls.h adds helpers for
// several calls at once and for methods of objects, client/checkpoint.h saves and loads whole jobs.

#include "client/context.h"                     // IWYU pragma: export
#include "client/function.h"                    // IWYU pragma: export
#include "client/optimizers.h"                  // IWYU pragma: export
#include "client/worker.h"                      // IWYU pragma: export
#include "client/worker_info.h"                 // IWYU pragma: export
#include "core/autograd/functions/functions.h"  // IWYU pragma: export
#include "core/base/future.h"                   // IWYU pragma: export
#include "core/base/status.h"                   // IWYU pragma: export
#include "core/tensor/tensor.h"                 // IWYU pragma: export
