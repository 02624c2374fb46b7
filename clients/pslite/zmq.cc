// SPDX-License-Identifier: Apache-2.0
// The van in ps-lite's types: a ZMQVan that shows each data message to the logic in C.
#include "create.h"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include <unistd.h>

#include "ps/ps.h"
#include "zmq_van.h"

#include "van.h"

namespace {

using ps::Message;
using ps::Postoffice;
using ps::SArray;

constexpr int kLeaveMs = 200;

class LibraVan : public ps::ZMQVan {
 public:
  LibraVan() {}
  ~LibraVan() override {
    if (stopped_) van_free(van_);
  }

 protected:
  // Start returns when ps-lite has given this node its number, and the sessions with the agent are open.
  void Start(int customer_id) override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      starts_++;
      if (!van_) {
        auto* po = Postoffice::Get();
        van_ = van_new(Host(), po->is_worker() ? VAN_WORKER : po->is_server() ? VAN_SERVER : VAN_SCHEDULER);
      }
    }
    ZMQVan::Start(customer_id);
    van_open(van_, my_node_.id, Postoffice::Get()->num_servers());
  }

  // Stop is called by one customer, when ps-lite has woken all from the last barrier. ps-lite forgets
  // the barrier after that: a customer of another thread that has not run yet would never return.
  void Stop() override {
    if (starts_ > 1) usleep(kLeaveMs * 1000);
    van_stop(van_);
    ZMQVan::Stop();
    stopped_ = true;
  }

  int SendMsg(const Message& msg) override {
    if (!msg.meta.control.empty()) return ZMQVan::SendMsg(msg);
    van_message m;
    van_rest r;
    Describe(msg, msg.meta.recver, &m);
    switch (van_send(van_, &m, &r)) {
      case VAN_TAKEN:
        return 0;
      case VAN_SPLIT: {
        Message rest;
        rest.meta = msg.meta;
        rest.meta.data_type.clear();
        rest.meta.data_size = 0;
        if (r.n) {
          rest.AddData(Own(r.keys, r.n));
          rest.AddData(Own(r.values, r.floats));
        }
        return ZMQVan::SendMsg(rest);
      }
      default:
        return ZMQVan::SendMsg(msg);
    }
  }

  int RecvMsg(Message* msg) override {
    for (;;) {
      int bytes = ZMQVan::RecvMsg(msg);
      if (bytes < 0 || !msg->meta.control.empty()) return bytes;
      van_message m;
      Describe(*msg, msg->meta.recver, &m);
      if (van_receive(van_, &m, msg) == VAN_PASS) return bytes;
      *msg = Message();
    }
  }

 private:
  // Own makes an array that frees memory of malloc.
  template <typename V>
  static SArray<V> Own(V* data, size_t n) {
    SArray<V> a;
    a.reset(data, n, [](V* p) { free(p); });
    return a;
  }

  template <typename V>
  static SArray<V> Copy(const V* data, size_t n) {
    SArray<V> a;
    a.CopyFrom(data, n);
    return a;
  }

  static void Describe(const Message& msg, int recver, van_message* m) {
    const auto& meta = msg.meta;
    *m = van_message();
    m->sender = meta.sender;
    m->recver = recver;
    m->app = meta.app_id;
    m->customer = meta.customer_id;
    m->timestamp = meta.timestamp;
    m->head = meta.head;
    m->request = meta.request;
    m->push = meta.push;
    m->pull = meta.pull;
    m->simple = meta.simple_app;
    m->lens = msg.data.size() > 2;
    if (msg.data.size() < 2 || meta.data_type.size() < 2) return;
    if (meta.data_type[0] == ps::UINT64) {
      m->keys = reinterpret_cast<const uint64_t*>(msg.data[0].data());
      m->n = msg.data[0].size() / sizeof(uint64_t);
    }
    if (meta.data_type[1] == ps::FLOAT) {
      m->is_float = true;
      m->values = reinterpret_cast<const float*>(msg.data[1].data());
      m->floats = msg.data[1].size() / sizeof(float);
    }
  }

  // CustomerOf returns the customer that gets a message, as Van::ProcessDataMsg does.
  static ps::Customer* CustomerOf(const Message& msg) {
    int app = msg.meta.app_id;
    return Postoffice::Get()->GetCustomer(app, Postoffice::Get()->is_worker() ? msg.meta.customer_id : app);
  }

  const van_host* Host() {
    host_.self = this;
    host_.variable = [](void*, const char* name) { return ps::Environment::Get()->find(name); };
    host_.keep = [](void*, void* msg) -> void* { return new Message(std::move(*static_cast<Message*>(msg))); };
    host_.harvest = [](void* self, int timestamp, const uint64_t* keys, size_t n, const float* sums,
                       size_t floats) -> void* {
      auto* msg = new Message();
      int node = static_cast<LibraVan*>(self)->my_node_.id;
      msg->meta.app_id = 0;
      msg->meta.customer_id = 0;
      msg->meta.head = 0;
      msg->meta.timestamp = timestamp;
      msg->meta.sender = msg->meta.recver = node;
      msg->meta.request = msg->meta.push = true;
      msg->meta.priority = std::numeric_limits<int>::max();  // before all that waits in the customer's queue
      auto k = Copy(keys, n);
      static_cast<LibraVan*>(self)->harvest_ = k.ptr();
      msg->AddData(k);
      msg->AddData(Copy(sums, floats));
      return msg;
    };
    host_.returned = [](void* self) { return static_cast<LibraVan*>(self)->harvest_.expired(); };
    host_.exists = [](void*, int app, int customer) {
      return Postoffice::Get()->GetCustomer(app, customer) != nullptr;
    };
    host_.accept = [](void*, void* kept) {
      std::unique_ptr<Message> msg(static_cast<Message*>(kept));
      if (auto* customer = CustomerOf(*msg))
        customer->Accept(*msg);
      else
        LOG(WARNING) << "libra van: the customer of a message has gone: " << msg->DebugString();
    };
    host_.drop = [](void*, void* kept) { delete static_cast<Message*>(kept); };
    host_.fail = [](void*, const char* text) {
      fprintf(stderr, "libra van: %s\n", text);
      fflush(nullptr);
      _exit(1);
    };
    host_.warn = [](void*, const char* text) { LOG(WARNING) << "libra van: " << text; };
    return &host_;
  }

  van_host host_;
  std::weak_ptr<uint64_t> harvest_;  // keys of the last one, which a message or the handle holds
  std::mutex mu_;
  van* van_ = nullptr;
  bool stopped_ = false;
  int starts_ = 0;  // customers that have started
};

}  // namespace

ps::Van* libra_van_create(const std::string& type, ps::Van* (*other)(const std::string&)) {
  return type == "libra" ? new LibraVan() : other(type);
}
