// Package authorities runs the certificate authorities of the meshes of one control plane:
// for each backend of each Mesh a signer, for each mesh the state of its rotation, and the
// steps from one authority to the next.
//
// It owns what follows from the Mesh objects. Enter at New for what every instance runs:
// it reads Meshes, GlobalSecrets and the sealed records, and has the signer that issues now
// (Signer). Enter at NewLeader for what the leader alone does: it makes roots, takes the
// steps of rotations and writes the status of Meshes. Records are the link between the two,
// so that an instance follows another one's leader as it does its own.
//
// It decides about no certificate of a workload (package issue does), keeps no key in the
// clear, and sends none anywhere.
package authorities
