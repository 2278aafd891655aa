//! Rebuilds etcd's v2 store (the store of API version 2) as 3.4 and 3.5 keep it in memory, so that its keys
//! can be imported: loads an image, and then applies the log entries after it.
//!
//! Requests have exactly the effects that they have in etcd's server, including oddities, because the results
//! of later requests depend on them. In particular, the store index counts every successful change, including
//! the changes that the cluster makes to its own directory (`/0`). A key appended to a directory gets the
//! store index as its name, and a request can require that the last change of a key has a certain index.
//!
//! All nodes are in one table and refer to each other by their position in it, so that no function needs
//! recursion, however deep a path is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::UNIX_EPOCH;

use api::etcdserverpb::InternalRaftRequest;
use api::raftpb::{ConfChange, ConfChangeType, Entry, EntryType};
use prost::Message as _;
use serde_json::Value;

use crate::command::{Malformed, OldRequest};

/// The keys and directories of the store at one entry of the log.
#[derive(Debug)]
pub struct V2Tree {
    /// All nodes; the first is the root.
    nodes: Vec<Node>,
    /// Positions in `nodes` that are free.
    free: Vec<usize>,
    /// Nodes that expire: time in nanoseconds since 1970, and position in `nodes`.
    expiring: BTreeSet<(i64, usize)>,
    /// The store index: the number of successful changes so far.
    index: u64,
}

#[derive(Debug)]
struct Node {
    name: String,
    parent: usize,
    created: u64,
    modified: u64,
    /// Time of expiry in nanoseconds since 1970; `None` for never.
    expires: Option<i64>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Value(String),
    Children(BTreeMap<String, usize>),
}

/// A key or a directory of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V2Node {
    /// Path of the node, such as `/dir/key`.
    pub path: String,
    /// Value of a key; `None` for a directory. Only empty directories are listed.
    pub value: Option<String>,
    /// Store index at which the node was created.
    pub created_index: u64,
    /// Store index of the node's last change.
    pub modified_index: u64,
    /// Time in nanoseconds since 1970 at which the node, or a directory that contains it, expires; `None` for
    /// never.
    pub expires_unix_nanos: Option<i64>,
}

const ROOT: usize = 0;
/// Name of the directory in which the cluster stores its members and its version.
const CLUSTER: &str = "0";
/// Name of the directory with all keys of users.
const USERS: &str = "1";
/// The only version of an image's format.
const IMAGE_VERSION: u64 = 2;
/// 2000-01-01 in nanoseconds since 1970. An earlier expiry time means that the node does not expire.
const EXPIRY_MIN: i64 = 946_684_800_000_000_000;
/// Number of learners that 3.4 and 3.5 allow in a cluster.
const LEARNERS_MAX: usize = 1;

impl V2Tree {
    /// Returns the store of a cluster without entries.
    pub fn new() -> V2Tree {
        let mut tree = V2Tree { nodes: Vec::new(), free: Vec::new(), expiring: BTreeSet::new(), index: 0 };
        let root = directory("", ROOT, 0, None);
        tree.place(root);
        for name in [CLUSTER, USERS] {
            tree.add(directory(name, ROOT, 0, None));
        }
        tree
    }

    /// Loads the store from an image in JSON.
    ///
    /// # Errors
    ///
    /// Returns a message that names the damaged node of the image and describes the damage.
    pub(crate) fn of_image(image: &Value) -> Result<V2Tree, String> {
        let version = number(image, "CurrentVersion", "the image")?;
        if version != IMAGE_VERSION {
            return Err(format!("it has version {version}, but only {IMAGE_VERSION} is supported"));
        }
        let index = number(image, "CurrentIndex", "the image")?;
        let root = image.get("Root").ok_or("it has no root")?;
        let mut tree = V2Tree { nodes: Vec::new(), free: Vec::new(), expiring: BTreeSet::new(), index };
        let read = read_node(root, "", ROOT)?;
        if let Content::Value(_) = read.content {
            return Err("its root is not a directory".to_owned());
        }
        tree.place(read);
        let mut open = vec![(root, ROOT)];
        while let Some((from, parent)) = open.pop() {
            for (name, child) in from.get("Children").and_then(Value::as_object).into_iter().flatten() {
                if name.is_empty() || name.contains('/') {
                    return Err(format!("{name:?} cannot be the name of a key"));
                }
                let read = read_node(child, name, parent)?;
                let at = tree.add(read);
                open.push((child, at));
            }
        }
        for name in [CLUSTER, USERS] {
            if tree.find(&[name.to_owned()]).is_none() {
                tree.add(directory(name, ROOT, 0, None));
            }
        }
        Ok(tree)
    }

    /// Applies an entry of the log. A request that etcd's server refuses changes nothing here either.
    ///
    /// # Errors
    ///
    /// Returns an error if the entry has a form that etcd does not write.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Result<(), Malformed> {
        let wrong = |what| Malformed { index: entry.index(), what };
        let data = entry.data.clone().unwrap_or_default();
        match entry.r#type() {
            EntryType::EntryConfChange => {
                let change = ConfChange::decode(data).map_err(|_| wrong("an invalid membership change"))?;
                return self.change_members(&change).map_err(wrong);
            }
            EntryType::EntryConfChangeV2 => {
                return Err(wrong("a membership change of a kind that etcd does not make"));
            }
            EntryType::EntryNormal => {}
        }
        if let Some(request) = OldRequest::find(&data).map_err(|()| wrong("an invalid request"))? {
            return self.request(&request).map_err(wrong);
        }
        let request = InternalRaftRequest::decode(data).map_err(|_| wrong("an invalid request"))?;
        // etcd 3.5 publishes the cluster version and the members' attributes in requests of API version 3,
        // and copies them to this store. Do the same, because each copy increments the store index. The
        // attributes themselves are not needed, so an empty string takes their place.
        if let Some(set) = request.cluster_version_set {
            self.set("/0/version", false, set.ver, None, false);
        }
        if let Some(set) = request.cluster_member_attr_set {
            self.set_attributes(&format!("{:x}", set.member_id), String::new());
        }
        Ok(())
    }

    /// Returns the keys and the empty directories of users, in order of their last changes.
    pub fn user_nodes(&self) -> impl Iterator<Item = V2Node> + '_ {
        let mut found = Vec::new();
        let mut open = Vec::from_iter(self.find(&[USERS.to_owned()]).map(|at| (at, None)));
        while let Some((at, above)) = open.pop() {
            let Some(node) = self.nodes.get(at) else { continue };
            let expires: Option<i64> = node.expires.into_iter().chain(above).min();
            match &node.content {
                Content::Children(children) if !children.is_empty() => {
                    open.extend(children.values().rev().map(|child| (*child, expires)));
                }
                // The root of all users' keys is not itself a directory of a user.
                Content::Children(_) if node.parent == ROOT => {}
                _ => found.push((node.modified, at, expires)),
            }
        }
        found.sort_by_key(|(modified, ..)| *modified);
        found.into_iter().filter_map(|(_, at, expires)| {
            let node = self.nodes.get(at)?;
            Some(V2Node {
                path: self.path(at),
                value: match &node.content {
                    Content::Value(value) => Some(value.clone()),
                    Content::Children(_) => None,
                },
                created_index: node.created,
                modified_index: node.modified,
                expires_unix_nanos: expires,
            })
        })
    }

    /// Returns the number of keys that are outside of both the cluster's directory and the directory of the
    /// users' keys. They contain users, roles and permissions of API version 2.
    pub fn other_keys(&self) -> usize {
        let Some(Node { content: Content::Children(roots), .. }) = self.nodes.first() else { return 0 };
        let others = roots.iter().filter(|(name, _)| *name != CLUSTER && *name != USERS);
        let (mut open, mut keys) = (Vec::from_iter(others.map(|(_, at)| *at)), 0);
        while let Some(at) = open.pop() {
            match self.nodes.get(at).map(|node| &node.content) {
                Some(Content::Children(children)) => open.extend(children.values()),
                Some(Content::Value(_)) => keys += 1,
                None => {}
            }
        }
        keys
    }

    /// Returns the path of a user's node, relative to the directory that contains all users' keys.
    fn path(&self, at: usize) -> String {
        let (mut names, mut at) = (Vec::new(), at);
        while let Some(node) = self.nodes.get(at).filter(|node| node.parent != ROOT) {
            names.push(node.name.as_str());
            at = node.parent;
        }
        let mut path = String::new();
        for name in names.into_iter().rev() {
            path.push('/');
            path.push_str(name);
        }
        path
    }

    fn request(&mut self, request: &OldRequest) -> Result<(), &'static str> {
        let OldRequest { path, prev_value, prev_index, expiration, .. } = request;
        let value = request.value.clone();
        let (refresh, expires) = (request.refresh, (*expiration != 0).then_some(*expiration));
        let compares = *prev_index > 0 || !prev_value.is_empty();
        // `None` means that the request failed. A failed request changes nothing, and its error mattered only
        // to the client, so ignore it.
        let _: Option<()> = match request.method.as_str() {
            "POST" => self.create(path, request.dir, value, (true, false), expires),
            "PUT" => match request.prev_exist {
                Some(true) if compares => self.compare_and_swap(request, expires),
                Some(true) => self.update(path, value, expires, refresh),
                Some(false) => self.create(path, request.dir, value, (false, false), expires),
                None if compares => self.compare_and_swap(request, expires),
                None => match attributes_of(path) {
                    Some(id) => self.set_attributes(id, value),
                    None => self.set(path, request.dir, value, expires, refresh),
                },
            },
            "DELETE" if compares => self.compare_and_delete(request),
            "DELETE" => self.delete(path, request.dir, request.recursive),
            "SYNC" => {
                self.expire(request.time);
                Some(())
            }
            "QGET" => Some(()),
            _ => return Err("a request to the old store of a kind that etcd does not have"),
        };
        Ok(())
    }

    /// Creates a key or a directory, and its missing parent directories. If `unique` is true, the node is
    /// created below `path` with the store index as its name. If `replaces` is true, an existing key is
    /// replaced.
    fn create(
        &mut self,
        path: &str,
        is_dir: bool,
        value: String,
        (unique, replaces): (bool, bool),
        expires: Option<i64>,
    ) -> Option<()> {
        let next = self.index + 1;
        let mut parts = clean(path);
        if unique {
            parts.push(format!("{next:020}"));
        }
        if is_fixed(&parts) {
            return None;
        }
        let expires = expires.filter(|at| *at >= EXPIRY_MIN);
        let (name, above) = parts.split_last()?;
        let mut parent = ROOT;
        for part in above {
            let Content::Children(children) = &self.nodes.get(parent)?.content else { return None };
            parent = match children.get(part) {
                Some(child) => *child,
                None => self.add(directory(part, parent, next, None)),
            };
        }
        let Content::Children(children) = &self.nodes.get(parent)?.content else { return None };
        if let Some(there) = children.get(name).copied() {
            if !replaces || matches!(self.nodes.get(there)?.content, Content::Children(_)) {
                return None;
            }
            self.remove(there);
        }
        let made = if is_dir {
            directory(name, parent, next, expires)
        } else {
            let content = Content::Value(value);
            Node { name: name.clone(), parent, created: next, modified: next, expires, content }
        };
        self.add(made);
        self.index = next;
        Some(())
    }

    fn set(
        &mut self,
        path: &str,
        is_dir: bool,
        value: String,
        expires: Option<i64>,
        refresh: bool,
    ) -> Option<()> {
        let value = if refresh { self.value(self.find(&clean(path))?).to_owned() } else { value };
        self.create(path, is_dir, value, (false, true), expires)
    }

    fn update(&mut self, path: &str, value: String, expires: Option<i64>, refresh: bool) -> Option<()> {
        let parts = clean(path);
        let at = self.find(&parts).filter(|_| !is_fixed(&parts))?;
        let next = self.index + 1;
        let node = self.nodes.get_mut(at)?;
        match &mut node.content {
            Content::Children(_) if !value.is_empty() => return None,
            // For an existing directory only the expiry time changes. As in etcd, its `modified` stays.
            Content::Children(_) => {}
            Content::Value(current) => {
                if !refresh {
                    *current = value;
                }
                node.modified = next;
            }
        }
        self.index = next;
        self.expire_at(at, expires);
        Some(())
    }

    fn compare_and_swap(&mut self, request: &OldRequest, expires: Option<i64>) -> Option<()> {
        let parts = clean(&request.path);
        let at = self.find(&parts).filter(|_| !is_fixed(&parts))?;
        let next = self.index + 1;
        self.compare(at, request)?;
        let node = self.nodes.get_mut(at)?;
        let Content::Value(current) = &mut node.content else { return None };
        if !request.refresh {
            current.clone_from(&request.value);
        }
        node.modified = next;
        self.index = next;
        self.expire_at(at, expires);
        Some(())
    }

    fn compare_and_delete(&mut self, request: &OldRequest) -> Option<()> {
        let at = self.find(&clean(&request.path))?;
        self.compare(at, request)?;
        self.remove(at);
        self.index += 1;
        Some(())
    }

    /// Checks a node against the conditions of a request. Returns `None` if a condition does not hold or the
    /// node is a directory.
    fn compare(&self, at: usize, request: &OldRequest) -> Option<()> {
        let node = self.nodes.get(at)?;
        let Content::Value(value) = &node.content else { return None };
        let is_it = (request.prev_index == 0 || request.prev_index == node.modified)
            && (request.prev_value.is_empty() || request.prev_value == *value);
        is_it.then_some(())
    }

    fn delete(&mut self, path: &str, is_dir: bool, recursive: bool) -> Option<()> {
        let parts = clean(path);
        let at = self.find(&parts).filter(|_| !is_fixed(&parts))?;
        if let Content::Children(children) = &self.nodes.get(at)?.content
            && !recursive
            && (!is_dir || !children.is_empty())
        {
            return None;
        }
        self.remove(at);
        self.index += 1;
        Some(())
    }

    /// Removes all nodes that expire at or before `cutoff`, in nanoseconds since 1970.
    fn expire(&mut self, cutoff: i64) {
        while let Some((at, node)) = self.expiring.first().copied()
            && at <= cutoff
        {
            self.remove(node);
            self.index += 1;
        }
    }

    /// Applies a membership change to the store, if etcd's server accepts it.
    fn change_members(&mut self, change: &ConfChange) -> Result<(), &'static str> {
        let wrong = "a membership change with an invalid member";
        let id = format!("{:x}", change.node_id());
        let (member, removed) = (format!("/0/members/{id}"), format!("/0/removed_members/{id}"));
        let attributes = format!("{member}/raftAttributes");
        let is_there = self.find(&clean(&member)).is_some();
        if self.find(&clean(&removed)).is_some() {
            return Ok(());
        }
        if change.r#type() == ConfChangeType::ConfChangeRemoveNode {
            if is_there {
                self.delete(&member, true, true);
                self.create(&removed, false, String::new(), (false, false), None);
            }
            return Ok(());
        }
        let context: Value =
            serde_json::from_slice(change.context.as_deref().unwrap_or_default()).map_err(|_| wrong)?;
        let flag = |name| context.get(name).and_then(Value::as_bool).unwrap_or_default();
        let urls = urls(&context);
        let others = self.raft_attributes(&id);
        let is_taken = others.iter().any(|other| self::urls(other).iter().any(|url| urls.contains(url)));
        let is_learner = |other: &Value| other.get("isLearner").and_then(Value::as_bool) == Some(true);
        let learners = others.iter().filter(|other| is_learner(other)).count();
        let text = |urls: &[&str], learns: bool| {
            let mut text = serde_json::json!({ "peerURLs": urls });
            if learns {
                text["isLearner"] = true.into();
            }
            text.to_string()
        };
        match change.r#type() {
            ConfChangeType::ConfChangeUpdateNode => {
                if is_there && !is_taken {
                    self.set(&attributes, false, text(&urls, false), None, false);
                }
            }
            _ if flag("isPromote") => {
                let own = self.find(&clean(&attributes)).map(|at| self.value(at).to_owned());
                let own: Option<Value> = own.and_then(|own| serde_json::from_str(&own).ok());
                if let Some(own) = own.filter(is_learner) {
                    self.set(&attributes, false, text(&self::urls(&own), false), None, false);
                }
            }
            _ => {
                let learns = flag("isLearner");
                let is_one_too_many = learns && learners >= LEARNERS_MAX;
                if !is_there && !is_taken && !is_one_too_many {
                    self.create(&attributes, false, text(&urls, learns), (false, false), None);
                }
            }
        }
        Ok(())
    }

    /// Returns the raft attributes of all members in the store except the member `except`.
    fn raft_attributes(&self, except: &str) -> Vec<Value> {
        let Some(members) = self.find(&clean("/0/members")) else { return Vec::new() };
        let Some(Node { content: Content::Children(members), .. }) = self.nodes.get(members) else {
            return Vec::new();
        };
        let others = members.keys().filter(|id| *id != except);
        others
            .filter_map(|id| self.find(&clean(&format!("/0/members/{id}/raftAttributes"))))
            .filter_map(|at| serde_json::from_str(self.value(at)).ok())
            .collect()
    }

    /// Sets the name and client URLs that a member has published.
    fn set_attributes(&mut self, id: &str, value: String) -> Option<()> {
        let member = format!("/0/members/{id}");
        self.find(&clean(&member))?;
        self.set(&format!("{member}/attributes"), false, value, None, false)
    }

    fn find(&self, parts: &[String]) -> Option<usize> {
        let mut at = ROOT;
        for part in parts {
            let Content::Children(children) = &self.nodes.get(at)?.content else { return None };
            at = *children.get(part)?;
        }
        Some(at)
    }

    /// Returns the value of a key; empty for a directory.
    fn value(&self, at: usize) -> &str {
        match self.nodes.get(at).map(|node| &node.content) {
            Some(Content::Value(value)) => value,
            _ => "",
        }
    }

    /// Adds a node to its parent and returns its position in `nodes`.
    fn add(&mut self, node: Node) -> usize {
        let (name, parent) = (node.name.clone(), node.parent);
        let at = self.place(node);
        if let Some(Content::Children(children)) = self.nodes.get_mut(parent).map(|node| &mut node.content) {
            children.insert(name, at);
        }
        at
    }

    fn place(&mut self, node: Node) -> usize {
        let expires = node.expires;
        let at = match self.free.pop() {
            Some(at) => at,
            None => self.nodes.len(),
        };
        match self.nodes.get_mut(at) {
            Some(place) => *place = node,
            None => self.nodes.push(node),
        }
        self.expiring.extend(expires.map(|expires| (expires, at)));
        at
    }

    /// Removes a node with everything below it.
    fn remove(&mut self, at: usize) {
        let Some(Node { name, parent, .. }) = self.nodes.get(at) else { return };
        let (name, parent) = (name.clone(), *parent);
        if let Some(Content::Children(children)) = self.nodes.get_mut(parent).map(|node| &mut node.content) {
            children.remove(&name);
        }
        let mut open = vec![at];
        while let Some(at) = open.pop() {
            self.expire_at(at, None);
            let Some(node) = self.nodes.get_mut(at) else { continue };
            if let Content::Children(children) =
                std::mem::replace(&mut node.content, Content::Value(String::new()))
            {
                open.extend(children.into_values());
            }
            self.free.push(at);
        }
    }

    /// Sets the time at which a node expires.
    fn expire_at(&mut self, at: usize, expires: Option<i64>) {
        let Some(node) = self.nodes.get_mut(at) else { return };
        if let Some(before) = std::mem::replace(&mut node.expires, expires) {
            self.expiring.remove(&(before, at));
        }
        self.expiring.extend(expires.map(|expires| (expires, at)));
    }
}

impl Default for V2Tree {
    fn default() -> V2Tree {
        V2Tree::new()
    }
}

fn directory(name: &str, parent: usize, index: u64, expires: Option<i64>) -> Node {
    let content = Content::Children(BTreeMap::new());
    Node { name: name.to_owned(), parent, created: index, modified: index, expires, content }
}

/// Returns the parts of a path, cleaned as Go's `path.Clean` does.
fn clean(path: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part.to_owned()),
        }
    }
    parts
}

/// Returns true if requests may not change this path: the root, and the directories of the cluster and of the
/// users.
fn is_fixed(parts: &[String]) -> bool {
    match parts {
        [] => true,
        [only] => only == CLUSTER || only == USERS,
        _ => false,
    }
}

/// Returns the id of the member whose attributes are at this path; `None` if no member's attributes are
/// there.
fn attributes_of(path: &str) -> Option<&str> {
    path.strip_prefix("/0/members/")?.strip_suffix("/attributes")
}

fn urls(attributes: &Value) -> Vec<&str> {
    let urls = attributes.get("peerURLs").and_then(Value::as_array);
    urls.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn number(from: &Value, field: &str, of: &str) -> Result<u64, String> {
    from.get(field).and_then(Value::as_u64).ok_or_else(|| format!("{of} has no {field}"))
}

/// Decodes a node of an image, without the nodes below it.
fn read_node(from: &Value, name: &str, parent: usize) -> Result<Node, String> {
    let fields = from.as_object().ok_or_else(|| format!("{name:?} is not a node"))?;
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    let of = format!("{:?}", text("Path").unwrap_or(name));
    let lacks = |what: &str| format!("{of} has no {what}");
    let content = match fields.get("Children") {
        Some(Value::Object(_)) => Content::Children(BTreeMap::new()),
        None | Some(Value::Null) => Content::Value(text("Value").ok_or_else(|| lacks("Value"))?.to_owned()),
        Some(_) => return Err(lacks("Children that can be")),
    };
    let expires = text("ExpireTime").ok_or_else(|| lacks("ExpireTime"))?;
    let expires = if expires.starts_with("0001-01-01T00:00:00") {
        None
    } else {
        let time = stdx::calendar::parse_rfc3339(expires).ok_or_else(|| lacks("ExpireTime that can be"))?;
        let nanos = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Some(i64::try_from(nanos).unwrap_or(i64::MAX))
    };
    Ok(Node {
        name: name.to_owned(),
        parent,
        created: number(from, "CreatedIndex", &of)?,
        modified: number(from, "ModifiedIndex", &of)?,
        expires,
        content,
    })
}
