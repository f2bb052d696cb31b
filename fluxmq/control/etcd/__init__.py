"""The cluster's metadata in etcd: a client, and the election of the node that coordinates."""
